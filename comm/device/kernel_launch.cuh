// SPDX-License-Identifier: Apache-2.0
// Launches of kernels: each launch is checked, and its name is in the error.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "comm/device/cuda_error.h"
#include "comm/device/stream.h"

namespace droptest::comm {

struct LaunchShape {
  std::uint64_t blocks = 0;
  unsigned threads = 256;        ///< threads of a block; a multiple of 32
  std::size_t shared_bytes = 0;  ///< bytes of the memory of dynamic_shared()
};

/// Blocks for a grid-stride loop over `items` items, one thread each.
inline LaunchShape cover(std::uint64_t items, unsigned threads = 256) {
  constexpr std::uint64_t kMostBlocks = 1U << 16U;
  return {std::min((items + threads - 1) / threads, kMostBlocks), threads, 0};
}

/// The dynamic shared memory of a block; the launch gives its size.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char droptest_dynamic_shared[];
  return reinterpret_cast<T*>(droptest_dynamic_shared);
}

/// Puts `kernel(arguments...)` on the stream of CUDA, of the current device; nothing if there are no blocks. `name` is
/// in the error of a failed launch. Throws: DeviceError.
template <class... Parameters, class... Arguments>
void launch(std::string_view name, void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "one argument for each parameter");
  if (shape.blocks == 0) return;
  const auto* function = reinterpret_cast<const void*>(kernel);
  // A kernel needs this attribute for more than 48 KiB, and its static shared memory counts too.
  if (shape.shared_bytes > 32U * 1024U) {
    check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)),
               name);
  }
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  std::apply(
      [&](auto&... value) {
        std::array<void*, sizeof...(Parameters)> pointers = {static_cast<void*>(&value)...};
        check_cuda(cudaLaunchKernel(function, dim3(static_cast<unsigned>(shape.blocks)), dim3(shape.threads),
                                    pointers.data(), shape.shared_bytes, stream),
                   name);
      },
      values);
}

template <class... Parameters, class... Arguments>
void launch(std::string_view name, void (*kernel)(Parameters...), const LaunchShape& shape, const Stream& stream,
            const Arguments&... arguments) {
  launch(name, kernel, shape, stream.handle(), arguments...);
}

}  // namespace droptest::comm
