// SPDX-License-Identifier: Apache-2.0
// The fake device's replacement of comm/device/kernel_launch.cuh: the same interface, but kernels are queued as C++
// calls.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "comm/device/cuda_error.h"
#include "comm/device/stream.h"
#include "tests/fake_cuda/kernel_queue.h"

namespace droptest::comm {

struct LaunchShape {
  std::uint64_t blocks = 0;
  unsigned threads = 256;
  std::size_t shared_bytes = 0;
};

inline LaunchShape cover(std::uint64_t items, unsigned threads = 256) {
  constexpr std::uint64_t kMostBlocks = 1U << 16U;
  return {std::min((items + threads - 1) / threads, kMostBlocks), threads, 0};
}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(fake_cuda::dynamic_shared_memory());
}

template <class... Parameters, class... Arguments>
void launch(std::string_view name, void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "one argument for each parameter");
  if (shape.blocks == 0) return;
  const std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  check_cuda(fake_cuda::queue_kernel(name, shape.blocks, shape.threads, shape.shared_bytes, stream,
                                     [kernel, values] { std::apply(kernel, values); }),
             name);
}

template <class... Parameters, class... Arguments>
void launch(std::string_view name, void (*kernel)(Parameters...), const LaunchShape& shape, const Stream& stream,
            const Arguments&... arguments) {
  launch(name, kernel, shape, stream.handle(), arguments...);
}

}  // namespace droptest::comm
