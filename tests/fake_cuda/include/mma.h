// SPDX-License-Identifier: Apache-2.0
// The fake device's replacement of CUDA's mma.h: GEMMs of 16 x 16 tiles. The first lane of a warp does the work of all
// lanes. So other lanes see a stored tile only after __syncwarp() or __syncthreads(), as CUDA's rules say.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

/// A tile, row by row. Only the tile of a warp's first lane has content.
template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "tiles of the fake device are 16 x 16 x 16");
  static_assert(std::is_same_v<Use, accumulator> ? std::is_same_v<T, float> : std::is_same_v<T, __nv_bfloat16>,
                "products of the fake device are of bfloat16, sums are float");
  static constexpr int num_elements = 256;
  T x[num_elements];
};

namespace fake {
inline bool first_lane() { return threadIdx.x % 32 == 0; }
}  // namespace fake

template <class Use, class T, class Layout>
void fill_fragment(fragment<Use, 16, 16, 16, T, Layout>& tile, const T& value) {
  if (!fake::first_lane()) return;
  for (T& elem : tile.x) elem = value;
}

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& tile, const T* from, unsigned ldm) {
  static_assert(!std::is_void_v<Layout>, "a tile of an accumulator is loaded with a layout_t");
  if (!fake::first_lane()) return;
  droptest::fake_cuda::check_tile(from, ldm, sizeof(T));
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned column = 0; column < 16; ++column) {
      tile.x[row * 16 + column] =
          std::is_same_v<Layout, row_major> ? from[row * ldm + column] : from[column * ldm + row];
    }
  }
}

inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, float>& tile, const float* from, unsigned ldm,
                             layout_t layout) {
  if (!fake::first_lane()) return;
  droptest::fake_cuda::check_tile(from, ldm, sizeof(float));
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned column = 0; column < 16; ++column) {
      tile.x[row * 16 + column] = layout == mem_row_major ? from[row * ldm + column] : from[column * ldm + row];
    }
  }
}

inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& tile, unsigned ldm,
                              layout_t layout) {
  if (!fake::first_lane()) return;
  droptest::fake_cuda::check_tile(to, ldm, sizeof(float));
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned column = 0; column < 16; ++column) {
      (layout == mem_row_major ? to[row * ldm + column] : to[column * ldm + row]) = tile.x[row * 16 + column];
    }
  }
}

template <class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& sum,
              const fragment<matrix_a, 16, 16, 16, __nv_bfloat16, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, __nv_bfloat16, LayoutB>& b,
              const fragment<accumulator, 16, 16, 16, float>& addend, bool = false) {
  if (!fake::first_lane()) return;
  float b_values[256];
  for (int i = 0; i < 256; ++i) b_values[i] = __bfloat162float(b.x[i]);
  for (int row = 0; row < 16; ++row) {
    float values[16];
    for (int column = 0; column < 16; ++column) values[column] = addend.x[row * 16 + column];
    for (int k = 0; k < 16; ++k) {
      const float a_value = __bfloat162float(a.x[row * 16 + k]);
      for (int column = 0; column < 16; ++column) values[column] += a_value * b_values[k * 16 + column];
    }
    for (int column = 0; column < 16; ++column) sum.x[row * 16 + column] = values[column];
  }
}

}  // namespace nvcuda::wmma
