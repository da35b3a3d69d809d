// SPDX-License-Identifier: Apache-2.0
// CUDA for kernels that g++ compiles for the fake device: the real types, and CUDA's keywords and built-in functions as
// calls of device_side.h. A missing keyword is a compile error: add it here.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/fake_cuda/device_side.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
// Only one block runs at a time in the whole process, so shared memory can be static.
#define __shared__ static

inline uint3& threadIdx = droptest::fake_cuda::thread_index;
inline uint3& blockIdx = droptest::fake_cuda::block_index;
inline dim3& blockDim = droptest::fake_cuda::block_size;
inline dim3& gridDim = droptest::fake_cuda::grid_size;
constexpr int warpSize = 32;

inline void __syncthreads() { droptest::fake_cuda::sync_block(); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) { droptest::fake_cuda::sync_warp(mask); }
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return droptest::fake_cuda::shuffle(droptest::fake_cuda::Shuffle::kIndex, mask, value, source, width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return droptest::fake_cuda::shuffle(droptest::fake_cuda::Shuffle::kXor, mask, value, lanes, width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  return droptest::fake_cuda::shuffle(droptest::fake_cuda::Shuffle::kDown, mask, value, static_cast<int>(lanes), width);
}

// One thread runs at a time in the whole process.
template <class T>
T atomicAdd(T* place, T value) {
  const T before = *place;
  *place += value;
  return before;
}
inline void __threadfence() {}

template <class T>
T __ldg(const T* from) {
  return *from;
}
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32U);
}
inline unsigned __float_as_uint(float x) {
  unsigned bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
