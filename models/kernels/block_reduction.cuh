// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over the threads of a block, in an order that depends only on the size of the block.
#pragma once

#include <cuda_runtime.h>

#include <limits>

namespace droptest::models {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kFullMask = 0xFFFFFFFFU;
inline constexpr unsigned kMostWarps = 32;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// The sum over the lanes of the warp, on every lane. All lanes must call it.
__device__ inline float warp_sum(float value) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kFullMask, value, distance);
  return value;
}
/// The largest value over the lanes of the warp, on every lane. All lanes must call it. A NaN may be ignored.
__device__ inline float warp_max(float value) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(kFullMask, value, distance));
  return value;
}

/// The sum over all threads of the block, on every thread. `shared` [kMostWarps] may be reused after the block's next
/// __syncthreads. All threads must call it.
__device__ inline float block_sum(float value, float* shared) {
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) sum += shared[warp];
  return sum;
}
struct TwoSums {
  float first;
  float second;
};
/// The sums of two values over all threads of the block, with one barrier. `shared` [2][kMostWarps] may be reused after
/// the block's next __syncthreads.
__device__ inline TwoSums block_sums(float first, float second, float (*shared)[kMostWarps]) {
  first = warp_sum(first);
  second = warp_sum(second);
  if (threadIdx.x % kWarp == 0) {
    shared[0][threadIdx.x / kWarp] = first;
    shared[1][threadIdx.x / kWarp] = second;
  }
  __syncthreads();
  TwoSums sums{0, 0};
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) {
    sums.first += shared[0][warp];
    sums.second += shared[1][warp];
  }
  return sums;
}
/// The largest value over all threads of the block, on every thread. `shared` [kMostWarps] may be reused after the
/// block's next __syncthreads. All threads must call it. A NaN may be ignored.
__device__ inline float block_max(float value, float* shared) {
  value = warp_max(value);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  float largest = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) largest = fmaxf(largest, shared[warp]);
  return largest;
}

}  // namespace droptest::models
