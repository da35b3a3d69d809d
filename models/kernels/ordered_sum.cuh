// SPDX-License-Identifier: Apache-2.0
// The sum of many numbers in double, in an order that depends only on their count.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string_view>

#include "comm/device/kernel_launch.cuh"

namespace droptest::models {

inline constexpr unsigned kSumThreads = 512;

/// The sum over the block's kSumThreads threads, on thread 0. `shared` [kSumThreads] may be reused at once.
__device__ inline double block_sum_of_doubles(double value, double* shared) {
  shared[threadIdx.x] = value;
  for (unsigned distance = kSumThreads / 2; distance > 0; distance /= 2) {
    __syncthreads();
    if (threadIdx.x < distance) shared[threadIdx.x] += shared[threadIdx.x + distance];
  }
  const double sum = shared[0];
  __syncthreads();
  return sum;
}

/// The destination of a sum: *number = sum / divisor, plus the old value if `adds` is not 0.
struct SumResult {
  double* number = nullptr;
  double divisor = 1;
  int adds = 0;
};

template <class T>
__global__ void ordered_sum_kernel(const T* values, std::int64_t count, SumResult result) {
  __shared__ double shared[kSumThreads];
  double own = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kSumThreads) own += static_cast<double>(values[i]);
  const double total = block_sum_of_doubles(own, shared);
  if (threadIdx.x == 0) *result.number = (result.adds != 0 ? *result.number : 0.0) + total / result.divisor;
}

/// Launches the sum of `count` values; the sum of no values is 0.
template <class T>
void launch_ordered_sum(std::string_view name, const T* values, std::int64_t count, const SumResult& result,
                        comm::Stream& stream) {
  comm::launch(name, ordered_sum_kernel<T>, {1, kSumThreads, 0}, stream, values, count, result);
}

}  // namespace droptest::models
