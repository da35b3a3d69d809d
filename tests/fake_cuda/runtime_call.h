// SPDX-License-Identifier: Apache-2.0
// The common begin and end of all fake calls of CUDA's runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>

#include "tests/fake_cuda/runtime.h"

namespace droptest::fake_cuda {

/// Stores the error for cudaGetLastError() of the thread, and returns it.
cudaError_t remember(cudaError_t error);

/// The error of work on the calling thread's current device: there is no device, or it is broken; else cudaSuccess.
cudaError_t current_state(const Runtime& runtime);

/// Waits as a host thread does. Returns the error that broke the device, or cudaSuccess.
cudaError_t finish(Runtime& runtime, Queue& queue, std::uint64_t position);

/// Calls body(runtime) with the lock, unless a test has planned an error for this call of `function`.
template <class Body>
cudaError_t call(const char* function, const Body& body) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  if (const int planned = runtime.begin(function)) return remember(static_cast<cudaError_t>(planned));
  return remember(body(runtime));
}

}  // namespace droptest::fake_cuda
