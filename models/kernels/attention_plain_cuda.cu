// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "models/kernels/attention_forms.cuh"
#include "models/kernels/attention_plain_tiles.cuh"
#include "models/kernels/dropout_draws.cuh"

namespace droptest::models {
namespace {

/// AttentionForward with elements of any type.
struct PlainForward {
  AttentionShape shape;
  TypedRows<const void> qkv;
  float* log_sum_exp;
  TypedRows<void> output;
};

/// AttentionBackward with elements of any type.
struct PlainBackward {
  AttentionShape shape;
  TypedRows<const void> grad_output;
  TypedRows<const void> qkv;
  const float* log_sum_exp;
  const float* delta;
  TypedRows<void> grad_qkv;
};

template <int kTile, int kWidth, class Draws>
__global__ void attention_forward_kernel(PlainForward work, Draws draws, float scale) {
  using T = Tiles<kTile, kWidth>;
  float* q_tile = comm::dynamic_shared<float>();
  float* kv_tile = q_tile + T::kFloats;
  float* weights = kv_tile + T::kFloats;
  const AttentionShape& shape = work.shape;
  const int y = static_cast<int>(threadIdx.x) / kSide;
  const int x = static_cast<int>(threadIdx.x) % kSide;
  const std::int64_t heads = shape.batch * shape.heads;
  const std::int64_t tiles = (shape.length + kTile - 1) / kTile;
  for (std::int64_t item = blockIdx.x; item < heads * tiles; item += gridDim.x) {
    const HeadPlace place = head_place(shape, item % heads);
    const std::int64_t first_query = (tiles - 1 - item / heads) * kTile;  // queries that see most keys come first
    const TypedRows<const void> rows = work.qkv.from(place.packed);
    __syncthreads();
    T::load(rows.from(first_query * place.packed_stride), place.packed_stride, shape.length - first_query,
            shape.head_width, q_tile);
    const std::uint64_t draws_key = draws.key_of_head(item % heads / shape.heads, item % heads % shape.heads);
    float largest[T::kRows];
    float sums[T::kRows];
    typename T::Sums out = {};
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      largest[r] = kMinusInfinity;
      sums[r] = 0;
    }
    for (std::int64_t first_key = 0; first_key <= first_query; first_key += kTile) {
      __syncthreads();
      T::load(rows.from(place.part + first_key * place.packed_stride), place.packed_stride, shape.length - first_key,
              shape.head_width, kv_tile);
      __syncthreads();
      typename T::Scores scores;
      T::inner_products(q_tile, kv_tile, static_cast<int>(shape.head_width), scores);
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
        const std::int64_t query = first_query + y + kSide * r;
        float tile_largest = kMinusInfinity;
#pragma unroll
        for (int c = 0; c < T::kScoreColumns; ++c) {
          const std::int64_t key = first_key + x + kSide * c;
          scores[r][c] = key <= query ? scores[r][c] * scale : kMinusInfinity;
          tile_largest = fmaxf(tile_largest, scores[r][c]);
        }
        const float new_largest = fmaxf(largest[r], row_threads_max(tile_largest));
        const float keep = expf(largest[r] - new_largest);
        float tile_sum = 0;
        typename Draws::Row drawn = draws.row_of_query(draws_key, query);
#pragma unroll
        for (int c = 0; c < T::kScoreColumns; ++c) {
          const float weight = expf(scores[r][c] - new_largest);
          weights[(y + kSide * r) * T::kScoreStride + x + kSide * c] = weight * drawn.factor(first_key + x + kSide * c);
          tile_sum += weight;
        }
        sums[r] = sums[r] * keep + row_threads_sum(tile_sum);
        largest[r] = new_largest;
#pragma unroll
        for (int c = 0; c < T::kWidthColumns; ++c) out[r][c] *= keep;
      }
      __syncthreads();
      T::load(rows.from(2 * place.part + first_key * place.packed_stride), place.packed_stride,
              shape.length - first_key, shape.head_width, kv_tile);
      __syncthreads();
      T::add_product(weights, kv_tile, out);
    }
    float inverse_sums[T::kRows];
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      inverse_sums[r] = 1.0F / sums[r];
      const std::int64_t query = first_query + y + kSide * r;
      if (x == 0 && query < shape.length) {
        work.log_sum_exp[place.statistics + query] = largest[r] + logf(sums[r]);
      }
    }
    T::store(out, inverse_sums, shape.length - first_query, shape.head_width, place.output_stride,
             work.output.from(place.output + first_query * place.output_stride));
  }
}

/// Sets p = exp(score - log_sum_exp), 0 for future keys and for queries beyond the end, and then applies dropout to p.
/// Replaces dp, the gradient of p, by the gradient of the score, multiplied by `scale`.
template <int kTile, int kWidth, class Draws>
__device__ void score_gradients(const PlainBackward& work, const Draws& draws, std::int64_t head, float scale,
                                std::int64_t first_query, std::int64_t first_key,
                                typename Tiles<kTile, kWidth>::Scores& p, typename Tiles<kTile, kWidth>::Scores& dp) {
  using T = Tiles<kTile, kWidth>;
  const AttentionShape& shape = work.shape;
  const std::uint64_t draws_key = draws.key_of_head(head / shape.heads, head % shape.heads);
  const int y = static_cast<int>(threadIdx.x) / kSide;
  const int x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const std::int64_t query = first_query + y + kSide * r;
    const bool inside = query < shape.length;
    const float row_log_sum = inside ? work.log_sum_exp[head * shape.length + query] : 0.0F;
    const float row_delta = inside ? work.delta[head * shape.length + query] : 0.0F;
    typename Draws::Row drawn = draws.row_of_query(draws_key, query);
#pragma unroll
    for (int c = 0; c < T::kScoreColumns; ++c) {
      const bool seen = inside && first_key + x + kSide * c <= query;
      p[r][c] = seen ? expf(p[r][c] * scale - row_log_sum) : 0.0F;
      const float factor = drawn.factor(first_key + x + kSide * c);
      dp[r][c] = p[r][c] * (factor * dp[r][c] - row_delta) * scale;
      p[r][c] *= factor;
    }
  }
}

template <int kTile, int kWidth, class Draws>
__global__ void attention_grad_queries_kernel(PlainBackward work, Draws draws, float scale) {
  using T = Tiles<kTile, kWidth>;
  float* q_tile = comm::dynamic_shared<float>();
  float* grad_tile = q_tile + T::kFloats;
  float* k_tile = grad_tile + T::kFloats;
  float* v_tile = k_tile + T::kFloats;
  float* weights = v_tile + T::kFloats;
  const AttentionShape& shape = work.shape;
  const std::int64_t heads = shape.batch * shape.heads;
  const std::int64_t tiles = (shape.length + kTile - 1) / kTile;
  for (std::int64_t item = blockIdx.x; item < heads * tiles; item += gridDim.x) {
    const HeadPlace place = head_place(shape, item % heads);
    const std::int64_t first_query = (tiles - 1 - item / heads) * kTile;
    const TypedRows<const void> rows = work.qkv.from(place.packed);
    __syncthreads();
    T::load(rows.from(first_query * place.packed_stride), place.packed_stride, shape.length - first_query,
            shape.head_width, q_tile);
    T::load(work.grad_output.from(place.output + first_query * place.output_stride), place.output_stride,
            shape.length - first_query, shape.head_width, grad_tile);
    typename T::Sums grad_q = {};
    for (std::int64_t first_key = 0; first_key <= first_query; first_key += kTile) {
      __syncthreads();
      T::load(rows.from(place.part + first_key * place.packed_stride), place.packed_stride, shape.length - first_key,
              shape.head_width, k_tile);
      T::load(rows.from(2 * place.part + first_key * place.packed_stride), place.packed_stride,
              shape.length - first_key, shape.head_width, v_tile);
      __syncthreads();
      typename T::Scores p;
      typename T::Scores ds;
      T::inner_products(q_tile, k_tile, static_cast<int>(shape.head_width), p);
      T::inner_products(grad_tile, v_tile, static_cast<int>(shape.head_width), ds);
      score_gradients<kTile, kWidth>(work, draws, item % heads, scale, first_query, first_key, p, ds);
      put_scores<kTile, kWidth>(ds, weights);
      __syncthreads();
      T::add_product(weights, k_tile, grad_q);
    }
    float ones[T::kRows];
    set_to_ones(ones);
    T::store(grad_q, ones, shape.length - first_query, shape.head_width, place.packed_stride,
             work.grad_qkv.from(place.packed + first_query * place.packed_stride));
  }
}

template <int kTile, int kWidth, class Draws>
__global__ void attention_grad_keys_kernel(PlainBackward work, Draws draws, float scale) {
  using T = Tiles<kTile, kWidth>;
  float* q_tile = comm::dynamic_shared<float>();
  float* grad_tile = q_tile + T::kFloats;
  float* k_tile = grad_tile + T::kFloats;
  float* v_tile = k_tile + T::kFloats;
  float* p_weights = v_tile + T::kFloats;
  float* ds_weights = p_weights + T::kScoreFloats;
  const AttentionShape& shape = work.shape;
  const std::int64_t heads = shape.batch * shape.heads;
  const std::int64_t tiles = (shape.length + kTile - 1) / kTile;
  for (std::int64_t item = blockIdx.x; item < heads * tiles; item += gridDim.x) {
    const HeadPlace place = head_place(shape, item % heads);
    const std::int64_t first_key = item / heads * kTile;  // keys that most queries see come first
    const TypedRows<const void> rows = work.qkv.from(place.packed);
    __syncthreads();
    T::load(rows.from(place.part + first_key * place.packed_stride), place.packed_stride, shape.length - first_key,
            shape.head_width, k_tile);
    T::load(rows.from(2 * place.part + first_key * place.packed_stride), place.packed_stride, shape.length - first_key,
            shape.head_width, v_tile);
    typename T::Sums grad_k = {};
    typename T::Sums grad_v = {};
    for (std::int64_t first_query = first_key; first_query < shape.length; first_query += kTile) {
      __syncthreads();
      T::load(rows.from(first_query * place.packed_stride), place.packed_stride, shape.length - first_query,
              shape.head_width, q_tile);
      T::load(work.grad_output.from(place.output + first_query * place.output_stride), place.output_stride,
              shape.length - first_query, shape.head_width, grad_tile);
      __syncthreads();
      typename T::Scores p;
      typename T::Scores ds;
      T::inner_products(q_tile, k_tile, static_cast<int>(shape.head_width), p);
      T::inner_products(grad_tile, v_tile, static_cast<int>(shape.head_width), ds);
      score_gradients<kTile, kWidth>(work, draws, item % heads, scale, first_query, first_key, p, ds);
      put_scores<kTile, kWidth>(p, p_weights);
      put_scores<kTile, kWidth>(ds, ds_weights);
      __syncthreads();
      T::add_transposed_product(p_weights, grad_tile, grad_v);
      T::add_transposed_product(ds_weights, q_tile, grad_k);
    }
    float ones[T::kRows];
    set_to_ones(ones);
    const TypedRows<void> grad_rows = work.grad_qkv.from(place.packed);
    T::store(grad_k, ones, shape.length - first_key, shape.head_width, place.packed_stride,
             grad_rows.from(place.part + first_key * place.packed_stride));
    T::store(grad_v, ones, shape.length - first_key, shape.head_width, place.packed_stride,
             grad_rows.from(2 * place.part + first_key * place.packed_stride));
  }
}

comm::LaunchShape tiles_shape(const AttentionShape& shape, int tile, int floats) {
  const std::int64_t tiles = (shape.length + tile - 1) / tile;
  return {std::min(static_cast<std::uint64_t>(shape.batch * shape.heads * tiles), kMostBlocks), kTileThreads,
          static_cast<std::size_t>(floats) * sizeof(float)};
}

template <int kTile, int kWidth>
void launch_forward(const PlainForward& work, const DropoutMask& dropout, comm::Stream& stream) {
  using T = Tiles<kTile, kWidth>;
  with_draws(dropout, [&](const auto& draws) {
    comm::launch("attention_forward", attention_forward_kernel<kTile, kWidth, std::decay_t<decltype(draws)>>,
                 tiles_shape(work.shape, kTile, 2 * T::kFloats + T::kScoreFloats), stream, work, draws,
                 static_cast<float>(score_scale(work.shape.head_width)));
  });
}

template <int kTile, int kWidth>
void launch_backward(const PlainBackward& work, const DropoutMask& dropout, comm::Stream& stream) {
  using T = Tiles<kTile, kWidth>;
  with_draws(dropout, [&](const auto& draws) {
    using Draws = std::decay_t<decltype(draws)>;
    comm::launch("attention_grad_queries", attention_grad_queries_kernel<kTile, kWidth, Draws>,
                 tiles_shape(work.shape, kTile, 4 * T::kFloats + T::kScoreFloats), stream, work, draws,
                 static_cast<float>(score_scale(work.shape.head_width)));
    comm::launch("attention_grad_keys", attention_grad_keys_kernel<kTile, kWidth, Draws>,
                 tiles_shape(work.shape, kTile, 4 * T::kFloats + 2 * T::kScoreFloats), stream, work, draws,
                 static_cast<float>(score_scale(work.shape.head_width)));
  });
}

// Tiles are as large as 99 KiB of shared memory allow, which every device since sm_80 has.

void launch_forward_of_width(const PlainForward& work, const DropoutMask& dropout, comm::Stream& stream) {
  if (work.shape.head_width <= 64) {
    launch_forward<64, 64>(work, dropout, stream);
  } else if (work.shape.head_width <= 128) {
    launch_forward<64, 128>(work, dropout, stream);
  } else {
    launch_forward<32, 256>(work, dropout, stream);
  }
}

void launch_backward_of_width(const PlainBackward& work, const DropoutMask& dropout, comm::Stream& stream) {
  if (work.shape.head_width <= 64) {
    launch_backward<64, 64>(work, dropout, stream);
  } else if (work.shape.head_width <= 128) {
    launch_backward<32, 128>(work, dropout, stream);
  } else {
    launch_backward<16, 256>(work, dropout, stream);
  }
}

}  // namespace

template <class D>
void launch_plain_attention_forward(const AttentionForward<D>& work, const DropoutMask& dropout, comm::Stream& stream) {
  launch_forward_of_width({work.shape, typed_rows(work.qkv), work.log_sum_exp, typed_rows(work.output)}, dropout,
                          stream);
}

template <class D>
void launch_plain_attention_backward(const AttentionBackward<D>& work, const DropoutMask& dropout,
                                     comm::Stream& stream) {
  launch_backward_of_width({work.shape, typed_rows(work.grad_output), typed_rows(work.qkv), work.log_sum_exp,
                            work.delta, typed_rows(work.grad_qkv)},
                           dropout, stream);
}

#define DROPTEST_ATTENTION_PLAIN(E)                                                                               \
  template void launch_plain_attention_forward<E>(const AttentionForward<E>&, const DropoutMask&, comm::Stream&); \
  template void launch_plain_attention_backward<E>(const AttentionBackward<E>&, const DropoutMask&, comm::Stream&);
DROPTEST_ATTENTION_PLAIN(float)
DROPTEST_ATTENTION_PLAIN(__nv_bfloat16)
DROPTEST_ATTENTION_PLAIN(__half)
#undef DROPTEST_ATTENTION_PLAIN

}  // namespace droptest::models
