// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "models/kernels/attention_forms.cuh"
#include "models/kernels/attention_tensor_tiles.cuh"
#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"

namespace droptest::models {
namespace {

/// The exponentials of a row are relative to a base score. If a score exceeds the base by more than this, the base is
/// raised and the row's sums are rescaled, which takes a round trip through shared memory. A factor of e^8 leaves
/// floats far from their limits, and does not change their relative rounding error.
constexpr float kMostRise = 8.0F;

template <int W>
__global__ void attention_forward_kernel(AttentionForward<Bfloat> work, float scale) {
  Bfloat* q_tile = shared_tiles();
  Bfloat* k_tile = q_tile + kTileElems<W>;
  Bfloat* v_tile = k_tile + kTileElems<W>;
  const unsigned warp = threadIdx.x / kWarp;
  float* strip = reinterpret_cast<float*>(v_tile + kTileElems<W>) + warp * kStripFloats;
  Bfloat* weights =
      reinterpret_cast<Bfloat*>(reinterpret_cast<float*>(v_tile + kTileElems<W>) + kWarps * kStripFloats) +
      warp * kStripFloats;
  const Lane lane;
  const AttentionShape& shape = work.shape;
  const std::int64_t heads = shape.batch * shape.heads;
  const std::int64_t tiles = (shape.length + kTile - 1) / kTile;
  for (std::int64_t item = blockIdx.x; item < heads * tiles; item += gridDim.x) {
    const HeadPlace place = head_place(shape, item % heads);
    const std::int64_t first_query = (tiles - 1 - item / heads) * kTile;  // queries that see most keys come first
    const std::int64_t strip_query = first_query + warp * kFragment;
    const std::int64_t query = strip_query + lane.row;
    const Bfloat* rows = work.qkv + place.packed;
    __syncthreads();
    load_tile<W>(rows, place.packed_stride, first_query, shape.length, q_tile);
    StripSums<W> out;
    out.clear();
    float base = 0;     // the score that the row's exponentials are relative to
    float own_sum = 0;  // sum over the lane's part of the row
    for (std::int64_t first_key = 0; first_key <= first_query; first_key += kTile) {
      __syncthreads();
      load_tile<W>(rows + place.part, place.packed_stride, first_key, shape.length, k_tile);
      load_tile<W>(rows + 2 * place.part, place.packed_stride, first_key, shape.length, v_tile);
      __syncthreads();
      inner_products<W>(q_tile + warp * kFragment * kRowStride<W>, k_tile, strip);
      LaneScores scores = take_strip(strip, lane);
      const int seen = columns_seen(query - first_key, lane);
      float largest = kMinusInfinity;
#pragma unroll
      for (int e = 0; e < kLaneColumns; ++e) {
        if (lane_column(e) >= seen) scores.at[e] = kMinusInfinity;
        largest = fmaxf(largest, scores.at[e]);
      }
      largest = scale * fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
      if (first_key == 0) {
        base = largest;
      } else if (warp_max(largest - base) > kMostRise) {
        const float new_base = fmaxf(base, largest);
        const float keep = expf(base - new_base);
        out.multiply_rows(keep, lane, strip);
        own_sum *= keep;
        base = new_base;
      }
#pragma unroll
      for (int e = 0; e < kLaneColumns; ++e) {
        scores.at[e] = expf(scores.at[e] * scale - base);
        own_sum += scores.at[e];
      }
      put_weights(scores, lane, weights);
      out.add_product(weights, v_tile);
    }
    const float sum = own_sum + __shfl_xor_sync(kFullMask, own_sum, 1);
    const bool inside = query < shape.length;
    if (inside && lane.side == 0) work.log_sum_exp[place.statistics + query] = base + logf(sum);
    out.write(1.0F / sum, lane, inside, strip, place.output_stride,
              work.output + place.output + strip_query * place.output_stride);
  }
}

template <int W>
__global__ void attention_grad_queries_kernel(AttentionBackward<Bfloat> work, float scale) {
  Bfloat* q_tile = shared_tiles();
  Bfloat* grad_tile = q_tile + kTileElems<W>;
  Bfloat* k_tile = grad_tile + kTileElems<W>;
  Bfloat* v_tile = k_tile + kTileElems<W>;
  const unsigned warp = threadIdx.x / kWarp;
  float* strip = reinterpret_cast<float*>(v_tile + kTileElems<W>) + warp * kStripFloats;
  Bfloat* weights =
      reinterpret_cast<Bfloat*>(reinterpret_cast<float*>(v_tile + kTileElems<W>) + kWarps * kStripFloats) +
      warp * kStripFloats;
  const Lane lane;
  const AttentionShape& shape = work.shape;
  const std::int64_t heads = shape.batch * shape.heads;
  const std::int64_t tiles = (shape.length + kTile - 1) / kTile;
  for (std::int64_t item = blockIdx.x; item < heads * tiles; item += gridDim.x) {
    const HeadPlace place = head_place(shape, item % heads);
    const std::int64_t first_query = (tiles - 1 - item / heads) * kTile;
    const std::int64_t strip_query = first_query + warp * kFragment;
    const std::int64_t query = strip_query + lane.row;
    const bool inside = query < shape.length;
    const float row_log_sum = inside ? work.log_sum_exp[place.statistics + query] : 0.0F;
    const float row_delta = inside ? work.delta[place.statistics + query] : 0.0F;
    const Bfloat* rows = work.qkv + place.packed;
    __syncthreads();
    load_tile<W>(rows, place.packed_stride, first_query, shape.length, q_tile);
    load_tile<W>(work.grad_output + place.output, place.output_stride, first_query, shape.length, grad_tile);
    StripSums<W> grad_q;
    grad_q.clear();
    for (std::int64_t first_key = 0; first_key <= first_query; first_key += kTile) {
      __syncthreads();
      load_tile<W>(rows + place.part, place.packed_stride, first_key, shape.length, k_tile);
      load_tile<W>(rows + 2 * place.part, place.packed_stride, first_key, shape.length, v_tile);
      __syncthreads();
      inner_products<W>(q_tile + warp * kFragment * kRowStride<W>, k_tile, strip);
      LaneScores p = take_strip(strip, lane);
      inner_products<W>(grad_tile + warp * kFragment * kRowStride<W>, v_tile, strip);
      const LaneScores dp = take_strip(strip, lane);
      const int seen = inside ? columns_seen(query - first_key, lane) : 0;
#pragma unroll
      for (int e = 0; e < kLaneColumns; ++e) {
        const float probability = lane_column(e) < seen ? expf(p.at[e] * scale - row_log_sum) : 0.0F;
        p.at[e] = probability * (dp.at[e] - row_delta);
      }
      put_weights(p, lane, weights);
      grad_q.add_product(weights, k_tile);
    }
    grad_q.write(scale, lane, inside, strip, place.packed_stride,
                 work.grad_qkv + place.packed + strip_query * place.packed_stride);
  }
}

template <int W>
__global__ void attention_grad_keys_kernel(AttentionBackward<Bfloat> work, float scale) {
  Bfloat* q_tile = shared_tiles();
  Bfloat* grad_tile = q_tile + kTileElems<W>;
  Bfloat* k_tile = grad_tile + kTileElems<W>;
  Bfloat* v_tile = k_tile + kTileElems<W>;
  const unsigned warp = threadIdx.x / kWarp;
  float* strips = reinterpret_cast<float*>(v_tile + kTileElems<W>);
  float* strip = strips + warp * kStripFloats;
  Bfloat* all_weights = reinterpret_cast<Bfloat*>(strips + kWarps * kStripFloats);
  Bfloat* weights = all_weights + warp * kStripFloats;
  float* log_sums = reinterpret_cast<float*>(all_weights + kWarps * kStripFloats);
  float* deltas = log_sums + kTile;
  const Lane lane;
  const AttentionShape& shape = work.shape;
  const std::int64_t heads = shape.batch * shape.heads;
  const std::int64_t tiles = (shape.length + kTile - 1) / kTile;
  for (std::int64_t item = blockIdx.x; item < heads * tiles; item += gridDim.x) {
    const HeadPlace place = head_place(shape, item % heads);
    const std::int64_t first_key = item / heads * kTile;  // keys that most queries see come first
    const std::int64_t strip_key = first_key + warp * kFragment;
    const std::int64_t key = strip_key + lane.row;
    const Bfloat* rows = work.qkv + place.packed;
    __syncthreads();
    load_tile<W>(rows + place.part, place.packed_stride, first_key, shape.length, k_tile);
    load_tile<W>(rows + 2 * place.part, place.packed_stride, first_key, shape.length, v_tile);
    StripSums<W> grad_k;
    StripSums<W> grad_v;
    grad_k.clear();
    grad_v.clear();
    for (std::int64_t first_query = first_key; first_query < shape.length; first_query += kTile) {
      __syncthreads();
      load_tile<W>(rows, place.packed_stride, first_query, shape.length, q_tile);
      load_tile<W>(work.grad_output + place.output, place.output_stride, first_query, shape.length, grad_tile);
      if (threadIdx.x < kTile) {
        const std::int64_t query = first_query + threadIdx.x;
        const bool inside = query < shape.length;
        log_sums[threadIdx.x] = inside ? work.log_sum_exp[place.statistics + query] : 0.0F;
        deltas[threadIdx.x] = inside ? work.delta[place.statistics + query] : 0.0F;
      }
      __syncthreads();
      // Rows are keys here, columns queries.
      inner_products<W>(k_tile + warp * kFragment * kRowStride<W>, q_tile, strip);
      LaneScores p = take_strip(strip, lane);
      // The visible queries: from the key's position to the end of the sequence.
      const int unseen = columns_seen(key - first_query - 1, lane);
      const int seen = columns_seen(shape.length - first_query - 1, lane);
#pragma unroll
      for (int e = 0; e < kLaneColumns; ++e) {
        const bool sees = lane_column(e) >= unseen && lane_column(e) < seen;
        p.at[e] = sees ? expf(p.at[e] * scale - log_sums[lane.column(e / kGroup) + e % kGroup]) : 0.0F;
      }
      put_weights(p, lane, weights);
      grad_v.add_product(weights, grad_tile);
      inner_products<W>(v_tile + warp * kFragment * kRowStride<W>, grad_tile, strip);
      const LaneScores dp = take_strip(strip, lane);
#pragma unroll
      for (int e = 0; e < kLaneColumns; ++e) {
        p.at[e] *= dp.at[e] - deltas[lane.column(e / kGroup) + e % kGroup];
      }
      put_weights(p, lane, weights);
      grad_k.add_product(weights, q_tile);
    }
    const bool inside = key < shape.length;
    Bfloat* grad_rows = work.grad_qkv + place.packed + strip_key * place.packed_stride;
    grad_k.write(scale, lane, inside, strip, place.packed_stride, grad_rows + place.part);
    grad_v.write(1.0F, lane, inside, strip, place.packed_stride, grad_rows + 2 * place.part);
  }
}

comm::LaunchShape tiles_shape(const AttentionShape& shape, std::size_t tile_elems, std::size_t row_floats) {
  const std::int64_t tiles = (shape.length + kTile - 1) / kTile;
  return {std::min(static_cast<std::uint64_t>(shape.batch * shape.heads * tiles), kMostBlocks), kWarps * kWarp,
          kFragmentAlignment + tile_elems * sizeof(Bfloat) + kWarps * kStripFloats * (sizeof(float) + sizeof(Bfloat)) +
              row_floats * sizeof(float)};
}

template <int W>
void launch_forward(const AttentionForward<Bfloat>& work, comm::Stream& stream) {
  comm::launch("attention_forward", attention_forward_kernel<W>, tiles_shape(work.shape, 3 * kTileElems<W>, 0), stream,
               work, static_cast<float>(score_scale(work.shape.head_width)));
}

template <int W>
void launch_backward(const AttentionBackward<Bfloat>& work, comm::Stream& stream) {
  comm::launch("attention_grad_queries", attention_grad_queries_kernel<W>,
               tiles_shape(work.shape, 4 * kTileElems<W>, 0), stream, work,
               static_cast<float>(score_scale(work.shape.head_width)));
  comm::launch("attention_grad_keys", attention_grad_keys_kernel<W>,
               tiles_shape(work.shape, 4 * kTileElems<W>, 2 * kTile), stream, work,
               static_cast<float>(score_scale(work.shape.head_width)));
}

}  // namespace

bool tensor_cores_take_width(std::int64_t head_width) { return head_width == 64 || head_width == 128; }

void launch_tensor_core_attention_forward(const AttentionForward<Bfloat>& work, comm::Stream& stream) {
  work.shape.head_width == 64 ? launch_forward<64>(work, stream) : launch_forward<128>(work, stream);
}

void launch_tensor_core_attention_backward(const AttentionBackward<Bfloat>& work, comm::Stream& stream) {
  work.shape.head_width == 64 ? launch_backward<64>(work, stream) : launch_backward<128>(work, stream);
}

}  // namespace droptest::models
