// SPDX-License-Identifier: Apache-2.0
// Tiles of attention in plain float arithmetic, for any element type and width: building blocks of kernels that have
// the scores in shared memory.
#pragma once

#include <cstdint>

#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/typed_rows.cuh"

namespace droptest::models {

// Source: Dao et al. 2022 (FlashAttention), Algorithms 1 and 4. The gradients of queries have a pass of their own, so
// that each sum is computed by one block in one order. Tiles of kTile queries and kTile keys, kWidth >= D columns wide,
// are in shared memory as floats. The block's threads are a square: thread (y, x) has the rows y, y + 16, ... and the
// columns x, x + 16, ... of every result, so that a warp's reads of a tile hit different banks.
inline constexpr int kSide = 16;
inline constexpr int kTileThreads = kSide * kSide;

template <int kRows>
__device__ void set_to_ones(float (&factors)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) factors[r] = 1.0F;
}

template <int kTile, int kWidth>
struct Tiles {
  static constexpr int kRows = kTile / kSide;           ///< rows of one thread
  static constexpr int kScoreColumns = kTile / kSide;   ///< columns of scores of one thread
  static constexpr int kWidthColumns = kWidth / kSide;  ///< columns of queries, keys, ... of one thread
  static constexpr int kStride = kWidth + 1;            ///< row stride of a tile of queries, keys, ...
  static constexpr int kScoreStride = kTile + 1;        ///< row stride of a tile of scores
  static constexpr int kFloats = kTile * kStride;       ///< floats in a tile of queries, keys, ...
  static constexpr int kScoreFloats = kTile * kScoreStride;

  using Scores = float[kRows][kScoreColumns];
  using Sums = float[kRows][kWidthColumns];

  /// Loads `count` rows of `width` elements into a tile and fills the rest with zeros. It is not inlined, because its
  /// three loops would take registers that the sums need.
  [[gnu::noinline]] static __device__ void load(TypedRows<const void> rows, std::int64_t stride, std::int64_t count,
                                                std::int64_t width, float* tile) {
    rows.visit([&](const auto* elems) {
      for (int e = static_cast<int>(threadIdx.x); e < kTile * kWidth; e += kTileThreads) {
        const int row = e / kWidth;
        const int d = e % kWidth;
        tile[row * kStride + d] = row < count && d < width ? as_float(elems[row * stride + d]) : 0.0F;
      }
    });
  }

  /// out[r][c] = the inner product of the thread's row r of a and row c of b.
  static __device__ void inner_products(const float* a, const float* b, int width, Scores& out) {
    const int y = static_cast<int>(threadIdx.x) / kSide;
    const int x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kScoreColumns; ++c) out[r][c] = 0;
    }
    for (int d = 0; d < width; ++d) {
      float b_values[kScoreColumns];
#pragma unroll
      for (int c = 0; c < kScoreColumns; ++c) b_values[c] = b[(x + kSide * c) * kStride + d];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float a_value = a[(y + kSide * r) * kStride + d];
#pragma unroll
        for (int c = 0; c < kScoreColumns; ++c) out[r][c] += a_value * b_values[c];
      }
    }
  }

  /// out += weights x rows.
  static __device__ void add_product(const float* weights, const float* rows, Sums& out) {
    const int y = static_cast<int>(threadIdx.x) / kSide;
    const int x = static_cast<int>(threadIdx.x) % kSide;
    for (int j = 0; j < kTile; ++j) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float weight = weights[(y + kSide * r) * kScoreStride + j];
#pragma unroll
        for (int c = 0; c < kWidthColumns; ++c) out[r][c] += weight * rows[j * kStride + x + kSide * c];
      }
    }
  }
  /// out += weights' x rows.
  static __device__ void add_transposed_product(const float* weights, const float* rows, Sums& out) {
    const int y = static_cast<int>(threadIdx.x) / kSide;
    const int x = static_cast<int>(threadIdx.x) % kSide;
    for (int j = 0; j < kTile; ++j) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float weight = weights[j * kScoreStride + y + kSide * r];
#pragma unroll
        for (int c = 0; c < kWidthColumns; ++c) out[r][c] += weight * rows[j * kStride + x + kSide * c];
      }
    }
  }

  /// Calls put(address, sum x factors[r]) for each of the thread's sums within `count` rows of `width` elements. `put`
  /// branches on the type for each element, because addresses for three types at once would take registers.
  template <class Put>
  static __device__ void for_each(const Sums& sums, const float (&factors)[kRows], std::int64_t count,
                                  std::int64_t width, std::int64_t stride, TypedRows<void> rows, const Put& put) {
    const int y = static_cast<int>(threadIdx.x) / kSide;
    const int x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = y + kSide * r;
#pragma unroll
      for (int c = 0; c < kWidthColumns; ++c) {
        const int d = x + kSide * c;
        if (row < count && d < width) put(rows.from(row * stride + d), sums[r][c] * factors[r]);
      }
    }
  }
  /// Writes the sums to the rows.
  static __device__ void store(const Sums& sums, const float (&factors)[kRows], std::int64_t count, std::int64_t width,
                               std::int64_t stride, TypedRows<void> rows) {
    for_each(sums, factors, count, width, stride, rows,
             [](TypedRows<void> at, float sum) { at.visit([&]<class D>(D* elem) { *elem = from_float<D>(sum); }); });
  }
  /// Adds the sums to the rows.
  static __device__ void add(const Sums& sums, std::int64_t count, std::int64_t width, std::int64_t stride,
                             TypedRows<void> rows) {
    float ones[kRows];
    set_to_ones(ones);
    for_each(sums, ones, count, width, stride, rows, [](TypedRows<void> at, float sum) {
      at.visit([&]<class D>(D* elem) { *elem = from_float<D>(as_float(*elem) + sum); });
    });
  }
};

/// The maximum and the sum over the kSide threads that share rows.
__device__ inline float row_threads_max(float value) {
  for (int distance = kSide / 2; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(kFullMask, value, distance));
  return value;
}
__device__ inline float row_threads_sum(float value) {
  for (int distance = kSide / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kFullMask, value, distance);
  return value;
}

template <int kTile, int kWidth>
__device__ void put_scores(const typename Tiles<kTile, kWidth>::Scores& scores, float* tile) {
  using T = Tiles<kTile, kWidth>;
  const int y = static_cast<int>(threadIdx.x) / kSide;
  const int x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < T::kScoreColumns; ++c) {
      tile[(y + kSide * r) * T::kScoreStride + x + kSide * c] = scores[r][c];
    }
  }
}

}  // namespace droptest::models
