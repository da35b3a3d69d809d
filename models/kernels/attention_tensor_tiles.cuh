// SPDX-License-Identifier: Apache-2.0
// Tiles and strips of attention on tensor cores: building blocks of the kernels in attention_tensor_cuda.cu.
#pragma once

#include <mma.h>

#include <cstdint>

#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"

namespace droptest::models {

namespace wmma = nvcuda::wmma;
using Bfloat = __nv_bfloat16;

// Source: Dao et al. 2022 (FlashAttention), Algorithms 1 and 4. The gradients of queries have a pass of their own, so
// that each sum is computed by one block in one order. A block has a tile of 64 queries (or 64 keys, for the gradients
// of keys and values). Each of its four warps has a strip of 16 of these rows against all 64 rows of the other tile.
// GEMMs work on 16 x 16 fragments. The compiler chooses the layout of a fragment, so single elements are accessed
// through shared memory, where a strip of scores has 16 rows of 64 columns. Two lanes share a row of a strip: lane / 2
// is the row, and each lane has every second group of four columns. So the eight lanes that access shared memory
// together use different banks.
inline constexpr int kFragment = 16;
inline constexpr int kTile = 64;
inline constexpr unsigned kWarps = kTile / kFragment;
inline constexpr int kStripStride = kTile + 8;
inline constexpr std::size_t kStripFloats = kFragment * kStripStride;
inline constexpr int kGroup = 4;
inline constexpr int kGroups = kTile / (2 * kGroup);  // groups of one lane
inline constexpr int kLaneColumns = kGroups * kGroup;

using Accumulator = wmma::fragment<wmma::accumulator, kFragment, kFragment, kFragment, float>;
using FragmentA = wmma::fragment<wmma::matrix_a, kFragment, kFragment, kFragment, Bfloat, wmma::row_major>;

/// A tile of 64 rows, W wide, in shared memory.
template <int W>
inline constexpr int kRowStride = W + 8;
template <int W>
inline constexpr int kTileElems = kRowStride<W>* kTile;

/// The block's shared memory from the first address at which a fragment may begin, less than kFragmentAlignment after
/// its start.
inline constexpr std::size_t kFragmentAlignment = 32;
__device__ inline Bfloat* shared_tiles() {
  auto* start = comm::dynamic_shared<unsigned char>();
  const std::size_t past = reinterpret_cast<std::uintptr_t>(start) % kFragmentAlignment;
  return reinterpret_cast<Bfloat*>(start + (kFragmentAlignment - past) % kFragmentAlignment);
}

/// The running lane's place in a strip.
struct Lane {
  int row = static_cast<int>(threadIdx.x % kWarp) / 2;
  int side = static_cast<int>(threadIdx.x % kWarp) % 2;
  __device__ int column(int group) const { return 2 * kGroup * group + kGroup * side; }
  __device__ int at(int group) const { return row * kStripStride + column(group); }
};

/// The column of a lane's element e, minus kGroup x the lane's side. So it is a compile-time constant.
__device__ constexpr int lane_column(int e) { return 2 * kGroup * (e / kGroup) + e % kGroup; }
/// A lane's element e has a column of at most `last` exactly if lane_column(e) is less than this number. `last` may lie
/// beyond the strip.
__device__ inline int columns_seen(std::int64_t last, const Lane& lane) {
  const std::int64_t within = last < -1 ? -1 : last < kTile ? last : kTile;
  return static_cast<int>(within) + 1 - kGroup * lane.side;
}

/// A lane's part of a strip of scores: element [group x 4 + i] is in column(group) + i.
struct LaneScores {
  float at[kLaneColumns];
};

__device__ inline LaneScores take_strip(const float* strip, const Lane& lane) {
  LaneScores scores;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const Floats<kGroup> four = load_floats<kGroup>(strip + lane.at(g));
#pragma unroll
    for (int i = 0; i < kGroup; ++i) scores.at[kGroup * g + i] = four.at[i];
  }
  __syncwarp();  // the strip may be overwritten from here on
  return scores;
}

/// Writes the strip as an operand of a GEMM. Returns when all lanes of the warp have written.
__device__ inline void put_weights(const LaneScores& scores, const Lane& lane, Bfloat* weights) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    Floats<kGroup> four;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) four.at[i] = scores.at[kGroup * g + i];
    store_floats<kGroup>(four, weights + lane.at(g));
  }
  __syncwarp();
}

/// Loads rows from `first` on, with zeros beyond the end of the sequence.
template <int W>
__device__ void load_tile(const Bfloat* rows, std::int64_t stride, std::int64_t first, std::int64_t length,
                          Bfloat* tile) {
  constexpr int kPacks = W / kPackElems<Bfloat>;
  using RowPack = Pack<Bfloat, kPackElems<Bfloat>>;
  for (int e = static_cast<int>(threadIdx.x); e < kTile * kPacks; e += kWarps * kWarp) {
    const int row = e / kPacks;
    const int d = e % kPacks * kPackElems<Bfloat>;
    RowPack pack;
#pragma unroll
    for (int i = 0; i < kPackElems<Bfloat>; ++i) pack.elems[i] = __float2bfloat16_rn(0.0F);
    if (first + row < length) pack = *reinterpret_cast<const RowPack*>(rows + (first + row) * stride + d);
    *reinterpret_cast<RowPack*>(tile + row * kRowStride<W> + d) = pack;
  }
}

/// strip = a b': the inner products of 16 rows with the 64 rows of a tile. Returns when the lanes of the warp may read
/// the strip.
template <int W>
__device__ void inner_products(const Bfloat* a_rows, const Bfloat* b_tile, float* strip) {
  Accumulator sums[kTile / kFragment];
#pragma unroll
  for (int n = 0; n < kTile / kFragment; ++n) wmma::fill_fragment(sums[n], 0.0F);
#pragma unroll
  for (int k = 0; k < W; k += kFragment) {
    FragmentA a;
    wmma::load_matrix_sync(a, a_rows + k, kRowStride<W>);
#pragma unroll
    for (int n = 0; n < kTile / kFragment; ++n) {
      wmma::fragment<wmma::matrix_b, kFragment, kFragment, kFragment, Bfloat, wmma::col_major> b;
      wmma::load_matrix_sync(b, b_tile + n * kFragment * kRowStride<W> + k, kRowStride<W>);
      wmma::mma_sync(sums[n], a, b, sums[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTile / kFragment; ++n) {
    wmma::store_matrix_sync(strip + n * kFragment, sums[n], kStripStride, wmma::mem_row_major);
  }
  __syncwarp();
}

/// 16 rows of W columns in the fragments of a warp.
template <int W>
struct StripSums {
  Accumulator parts[W / kFragment];

  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < W / kFragment; ++n) wmma::fill_fragment(parts[n], 0.0F);
  }

  /// Adds weights [16, 64] x tile [64, W]. The weights may be overwritten when it returns.
  __device__ void add_product(const Bfloat* weights, const Bfloat* tile) {
#pragma unroll
    for (int k = 0; k < kTile; k += kFragment) {
      FragmentA a;
      wmma::load_matrix_sync(a, weights + k, kStripStride);
#pragma unroll
      for (int n = 0; n < W / kFragment; ++n) {
        wmma::fragment<wmma::matrix_b, kFragment, kFragment, kFragment, Bfloat, wmma::row_major> b;
        wmma::load_matrix_sync(b, tile + k * kRowStride<W> + n * kFragment, kRowStride<W>);
        wmma::mma_sync(parts[n], a, b, parts[n]);
      }
    }
    __syncwarp();
  }

  /// Writes the columns first, ..., first + kTile - 1 into the strip.
  __device__ void put(int first, float* strip) const {
#pragma unroll
    for (int n = 0; n < kTile / kFragment; ++n) {
      wmma::store_matrix_sync(strip + n * kFragment, parts[first / kFragment + n], kStripStride, wmma::mem_row_major);
    }
    __syncwarp();
  }

  /// Multiplies each row by `factor`, which both lanes of the row pass.
  __device__ void multiply_rows(float factor, const Lane& lane, float* strip) {
#pragma unroll
    for (int first = 0; first < W; first += kTile) {
      put(first, strip);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        Floats<kGroup> four = load_floats<kGroup>(strip + lane.at(g));
#pragma unroll
        for (int i = 0; i < kGroup; ++i) four.at[i] *= factor;
        store_floats<kGroup>(four, strip + lane.at(g));
      }
      __syncwarp();
#pragma unroll
      for (int n = 0; n < kTile / kFragment; ++n) {
        wmma::load_matrix_sync(parts[first / kFragment + n], strip + n * kFragment, kStripStride, wmma::mem_row_major);
      }
      __syncwarp();
    }
  }

  /// Writes the rows, multiplied by the factor of their lanes. `inside` says whether the lane's row belongs to the
  /// sequence.
  __device__ void write(float factor, const Lane& lane, bool inside, float* strip, std::int64_t stride,
                        Bfloat* rows) const {
#pragma unroll
    for (int first = 0; first < W; first += kTile) {
      put(first, strip);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        Floats<kGroup> four = load_floats<kGroup>(strip + lane.at(g));
#pragma unroll
        for (int i = 0; i < kGroup; ++i) four.at[i] *= factor;
        if (inside) store_floats<kGroup>(four, rows + lane.row * stride + first + lane.column(g));
      }
      __syncwarp();
    }
  }
};

}  // namespace droptest::models
