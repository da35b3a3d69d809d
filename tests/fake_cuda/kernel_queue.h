// SPDX-License-Identifier: Apache-2.0
// The launch of kernels on the fake device, for its replacement of comm/device/kernel_launch.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace droptest::fake_cuda {

/// Queues a kernel; each of its threads calls `thread`. Returns the result of cudaLaunchKernel.
cudaError_t queue_kernel(std::string_view name, std::uint64_t blocks, unsigned threads, std::size_t shared_bytes,
                         cudaStream_t stream, std::function<void()> thread);

}  // namespace droptest::fake_cuda
