// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "models/attention/device_view.cuh"
#include "models/kernels/attention.h"
#include "models/kernels/attention_plain_tiles.cuh"
#include "models/kernels/dropout_draws.cuh"
#include "sim/error.h"

namespace droptest::models {
namespace {

using Strip = DeviceAttentionPattern::Strip;

constexpr std::int64_t kMostWidth = 256;

// Tiles are as large as 99 KiB of shared memory allow, for the gradients of keys. Calls body<kTile, kWidth>().
template <class Body>
void with_tiles(std::int64_t width, const Body& body) {
  if (width <= 64) {
    body.template operator()<64, 64>();
  } else if (width <= 128) {
    body.template operator()<32, 128>();
  } else {
    body.template operator()<16, 256>();
  }
}

std::int64_t tile_of(std::int64_t width) {
  std::int64_t tile = 0;
  with_tiles(width, [&]<int kTile, int kWidth>() { tile = kTile; });
  return tile;
}

/// Consecutive tokens of a run, at most a tile of them.
struct Part {
  TokenRun run;
  std::int64_t first;
  std::int64_t count;

  __device__ std::int64_t token(std::int64_t i) const { return run.index + (first + i) * run.index_step; }
  __device__ std::int64_t position(std::int64_t i) const { return run.position + (first + i) * run.position_step; }
};

__device__ TokenRun moved(TokenRun run, std::int64_t by) {
  run.position += by;
  return run;
}

__device__ Part part_of(const TokenRun& run, std::int64_t first, std::int64_t tile) {
  const std::int64_t rest = run.count - first;
  return {run, first, rest < tile ? rest : tile};
}

/// The data that decide which keys a query sees.
struct Visibility {
  bool is_causal;
  std::int64_t positions;
  const std::int32_t* documents;
  const float* added;
  const std::uint8_t* absent;
  std::int64_t batch_size;
  std::int64_t heads;

  /// Keys of the run, from its first one on, that a query at this position may see.
  __device__ std::int64_t seen(std::int64_t query, const TokenRun& keys) const {
    if (!is_causal) return keys.count;
    if (query < keys.position) return 0;
    const std::int64_t count = (query - keys.position) / keys.position_step + 1;
    return count < keys.count ? count : keys.count;
  }
  /// Queries of the run, from its first one on, that do not see a key at this position.
  __device__ std::int64_t blind(std::int64_t key, const TokenRun& queries) const {
    if (!is_causal || key <= queries.position) return 0;
    const std::int64_t count = (key - queries.position - 1) / queries.position_step + 1;
    return count < queries.count ? count : queries.count;
  }
  /// The scaled score with masks; minus infinity if the query does not see the key.
  __device__ float masked(float score, std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key,
                          std::int64_t key_token) const {
    if (is_causal && key > query) return kMinusInfinity;
    if (documents != nullptr) {
      const std::int32_t of_key = documents[batch * positions + key];
      if (of_key < 0 || of_key != documents[batch * positions + query]) return kMinusInfinity;
    }
    if (absent != nullptr && absent[(key_token * batch_size + batch) * heads + head] != 0) return kMinusInfinity;
    return added == nullptr ? score : score + added[(batch * positions + query) * positions + key];
  }
};

/// A view of elements of a type that the kernel knows only at run time.
template <class Void>
struct TypedView {
  TypedRows<Void> rows;
  std::int64_t batch_stride, token_stride, head_stride;

  __device__ TypedRows<Void> at(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return rows.from(batch * batch_stride + token * token_stride + head * head_stride);
  }
};

template <class E>
auto typed_view_in_kernel(const DeviceHeadView<E>& heads, const char* name) {
  const auto view = view_in_kernel(heads, name);
  using Void = std::conditional_t<std::is_const_v<E>, const void, void>;
  return TypedView<Void>{typed_rows(view.data), view.batch_stride, view.token_stride, view.head_stride};
}

struct Inputs {
  HeadShape shape;  ///< the shape of the queries
  TypedView<const void> queries, keys, values;
  Visibility visibility;
  float scale;
  std::int64_t first_query, first_key;  ///< see DeviceAttentionInputs
};

/// The strips of a pattern's side, for all sequences.
struct Items {
  const Strip* strips;
  std::int64_t count;
  const TokenRun* met;
};

template <class Form>
__device__ void load_part(const TypedView<const void>& view, const Part& part, std::int64_t batch, std::int64_t head,
                          std::int64_t width, float* tile) {
  Form::load(view.at(batch, part.token(0), head), view.token_stride * part.run.index_step, part.count, width, tile);
}

/// The index of a query's entry in log_sum_exp [batch, heads, queries].
__device__ std::int64_t statistic(const HeadShape& queries, std::int64_t batch, std::int64_t head, std::int64_t token) {
  return (batch * queries.heads + head) * queries.tokens + token;
}

template <class D>
__global__ void begin_attention_kernel(View<D> output, HeadShape shape, float* log_sum_exp) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t rows = shape.batch * shape.heads * shape.tokens;
  for (std::int64_t i = first; i < rows * shape.width; i += step) {
    const std::int64_t row = i / shape.width;
    const std::int64_t token = row / shape.heads % shape.tokens;
    output.at(row / shape.heads / shape.tokens, token, row % shape.heads)[i % shape.width] = from_float<D>(0.0F);
  }
  for (std::int64_t i = first; i < rows; i += step) log_sum_exp[i] = kMinusInfinity;
}

template <int kTile, int kWidth, class Draws>
__global__ void attend_kernel(Inputs in, Draws draws, Items items, TypedView<void> output, float* log_sum_exp) {
  using T = Tiles<kTile, kWidth>;
  float* q_tile = comm::dynamic_shared<float>();
  float* kv_tile = q_tile + T::kFloats;
  float* weights = kv_tile + T::kFloats;
  const int y = static_cast<int>(threadIdx.x) / kSide;
  const int x = static_cast<int>(threadIdx.x) % kSide;
  const std::int64_t width = in.shape.width;
  for (std::int64_t item = blockIdx.x; item < in.shape.batch * items.count; item += gridDim.x) {
    const Strip& strip = items.strips[item % items.count];
    const std::int64_t b = item / items.count;
    const std::int64_t h = strip.head;
    const Part queries = part_of(moved(strip.run, in.first_query), strip.first, kTile);
    const TypedRows<void> out_rows = output.at(b, queries.token(0), h);
    const std::int64_t out_stride = output.token_stride * strip.run.index_step;
    __syncthreads();
    load_part<T>(in.queries, queries, b, h, width, q_tile);
    const std::uint64_t draws_key = draws.key_of_head(b, h);
    // An attention so far is one key with the score log_sum_exp and the value output.
    float largest[T::kRows];
    float sums[T::kRows];
    typename T::Sums out = {};
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const std::int64_t i = y + kSide * r;
      largest[r] = i < queries.count ? log_sum_exp[statistic(in.shape, b, h, queries.token(i))] : kMinusInfinity;
      const bool has_seen = largest[r] != kMinusInfinity;
      sums[r] = has_seen ? 1.0F : 0.0F;
#pragma unroll
      for (int c = 0; c < T::kWidthColumns; ++c) {
        const int d = x + kSide * c;
        if (has_seen && d < width) {
          out_rows.from(i * out_stride + d).visit([&](const auto* elem) { out[r][c] = as_float(*elem); });
        }
      }
    }
    const std::int64_t last_query = queries.position(queries.count - 1);
    for (std::int64_t m = strip.first_met; m < strip.end_met; ++m) {
      const TokenRun run = moved(items.met[m], in.first_key);
      const std::int64_t seen = in.visibility.seen(last_query, run);
      for (std::int64_t first_key = 0; first_key < seen; first_key += kTile) {
        const Part keys = part_of(run, first_key, kTile);
        __syncthreads();
        load_part<T>(in.keys, keys, b, h, width, kv_tile);
        __syncthreads();
        typename T::Scores scores;
        T::inner_products(q_tile, kv_tile, static_cast<int>(width), scores);
#pragma unroll
        for (int r = 0; r < T::kRows; ++r) {
          const std::int64_t i = y + kSide * r;
          float tile_largest = kMinusInfinity;
#pragma unroll
          for (int c = 0; c < T::kScoreColumns; ++c) {
            const std::int64_t j = x + kSide * c;
            scores[r][c] = i < queries.count && j < keys.count
                               ? in.visibility.masked(scores[r][c] * in.scale, b, h, queries.position(i),
                                                      keys.position(j), keys.token(j))
                               : kMinusInfinity;
            tile_largest = fmaxf(tile_largest, scores[r][c]);
          }
          const float new_largest = fmaxf(largest[r], row_threads_max(tile_largest));
          // Without a visible key all exponentials are 0 relative to anything finite.
          const float base = new_largest == kMinusInfinity ? 0.0F : new_largest;
          const float keep = expf(largest[r] - base);
          float tile_sum = 0;
          typename Draws::Row drawn = draws.row_of_query(draws_key, queries.position(i));
#pragma unroll
          for (int c = 0; c < T::kScoreColumns; ++c) {
            const float weight = expf(scores[r][c] - base);
            const std::int64_t j = x + kSide * c;
            weights[(y + kSide * r) * T::kScoreStride + j] = weight * drawn.factor(keys.position(j));
            tile_sum += weight;
          }
          sums[r] = sums[r] * keep + row_threads_sum(tile_sum);
          largest[r] = new_largest;
#pragma unroll
          for (int c = 0; c < T::kWidthColumns; ++c) out[r][c] *= keep;
        }
        __syncthreads();
        load_part<T>(in.values, keys, b, h, width, kv_tile);
        __syncthreads();
        T::add_product(weights, kv_tile, out);
      }
    }
    __syncthreads();  // all threads of a row have read its log-sum-exp
    float inverse_sums[T::kRows];
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const std::int64_t i = y + kSide * r;
      inverse_sums[r] = sums[r] == 0 ? 0.0F : 1.0F / sums[r];
      if (x == 0 && i < queries.count) {
        log_sum_exp[statistic(in.shape, b, h, queries.token(i))] =
            sums[r] == 0 ? kMinusInfinity : largest[r] + logf(sums[r]);
      }
    }
    T::store(out, inverse_sums, queries.count, width, out_stride, out_rows);
  }
}

/// delta[b, h, t] = the sum over d of grad_output x output, less the gradient of the log-sum-exp. A warp has one query.
template <class D>
__global__ void token_delta_kernel(View<const D> grad_output, View<const D> output, HeadShape shape,
                                   const float* log_sum_exp, const float* grad_log_sum_exp, float* delta) {
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (blockDim.x / kWarp);
  const std::int64_t count = shape.batch * shape.heads * shape.tokens;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp; i < count;
       i += warps) {
    const std::int64_t token = i % shape.tokens;
    const std::int64_t head = i / shape.tokens % shape.heads;
    const std::int64_t batch = i / shape.tokens / shape.heads;
    const D* dy = grad_output.at(batch, token, head);
    const D* y = output.at(batch, token, head);
    float own = 0;
    for (std::int64_t d = threadIdx.x % kWarp; d < shape.width; d += kWarp) own += as_float(dy[d]) * as_float(y[d]);
    const float sum = warp_sum(own);
    const bool has_more = grad_log_sum_exp != nullptr && log_sum_exp[i] != kMinusInfinity;
    if (threadIdx.x % kWarp == 0) delta[i] = sum - (has_more ? grad_log_sum_exp[i] : 0.0F);
  }
}

struct Results {
  TypedView<const void> grad_output;
  const float* log_sum_exp;
  const float* delta;
};

/// Sets p = exp(score - log_sum_exp), 0 for keys that a query does not see, and then applies dropout to p. Replaces dp,
/// the gradient of p, by the gradient of the score, multiplied by `scale`.
template <int kTile, int kWidth, class Draws>
__device__ void score_gradients(const Inputs& in, const Draws& draws, const Results& results, std::int64_t b,
                                std::int64_t h, const Part& queries, const Part& keys,
                                typename Tiles<kTile, kWidth>::Scores& p, typename Tiles<kTile, kWidth>::Scores& dp) {
  using T = Tiles<kTile, kWidth>;
  const std::uint64_t draws_key = draws.key_of_head(b, h);
  const int y = static_cast<int>(threadIdx.x) / kSide;
  const int x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const std::int64_t i = y + kSide * r;
    const bool inside = i < queries.count;
    const std::int64_t at = inside ? statistic(in.shape, b, h, queries.token(i)) : 0;
    const float row_log_sum = inside ? results.log_sum_exp[at] : kMinusInfinity;
    const float row_delta = inside ? results.delta[at] : 0.0F;
    typename Draws::Row drawn = draws.row_of_query(draws_key, queries.position(i));
#pragma unroll
    for (int c = 0; c < T::kScoreColumns; ++c) {
      const std::int64_t j = x + kSide * c;
      float score = kMinusInfinity;
      if (row_log_sum != kMinusInfinity && j < keys.count) {
        score = in.visibility.masked(p[r][c] * in.scale, b, h, queries.position(i), keys.position(j), keys.token(j));
      }
      p[r][c] = score == kMinusInfinity ? 0.0F : expf(score - row_log_sum);
      const float factor = drawn.factor(keys.position(j));
      dp[r][c] = p[r][c] * (factor * dp[r][c] - row_delta) * in.scale;
      p[r][c] *= factor;
    }
  }
}

template <int kTile, int kWidth, class Draws>
__global__ void attend_grad_queries_kernel(Inputs in, Draws draws, Items items, Results results,
                                           TypedView<void> grad_queries) {
  using T = Tiles<kTile, kWidth>;
  float* q_tile = comm::dynamic_shared<float>();
  float* grad_tile = q_tile + T::kFloats;
  float* k_tile = grad_tile + T::kFloats;
  float* v_tile = k_tile + T::kFloats;
  float* weights = v_tile + T::kFloats;
  const std::int64_t width = in.shape.width;
  for (std::int64_t item = blockIdx.x; item < in.shape.batch * items.count; item += gridDim.x) {
    const Strip& strip = items.strips[item % items.count];
    const std::int64_t b = item / items.count;
    const std::int64_t h = strip.head;
    const Part queries = part_of(moved(strip.run, in.first_query), strip.first, kTile);
    __syncthreads();
    load_part<T>(in.queries, queries, b, h, width, q_tile);
    load_part<T>(results.grad_output, queries, b, h, width, grad_tile);
    typename T::Sums grad_q = {};
    const std::int64_t last_query = queries.position(queries.count - 1);
    for (std::int64_t m = strip.first_met; m < strip.end_met; ++m) {
      const TokenRun run = moved(items.met[m], in.first_key);
      const std::int64_t seen = in.visibility.seen(last_query, run);
      for (std::int64_t first_key = 0; first_key < seen; first_key += kTile) {
        const Part keys = part_of(run, first_key, kTile);
        __syncthreads();
        load_part<T>(in.keys, keys, b, h, width, k_tile);
        load_part<T>(in.values, keys, b, h, width, v_tile);
        __syncthreads();
        typename T::Scores p;
        typename T::Scores ds;
        T::inner_products(q_tile, k_tile, static_cast<int>(width), p);
        T::inner_products(grad_tile, v_tile, static_cast<int>(width), ds);
        score_gradients<kTile, kWidth>(in, draws, results, b, h, queries, keys, p, ds);
        put_scores<kTile, kWidth>(ds, weights);
        __syncthreads();
        T::add_product(weights, k_tile, grad_q);
      }
    }
    T::add(grad_q, queries.count, width, grad_queries.token_stride * strip.run.index_step,
           grad_queries.at(b, queries.token(0), h));
  }
}

template <int kTile, int kWidth, class Draws>
__global__ void attend_grad_keys_kernel(Inputs in, Draws draws, Items items, Results results, TypedView<void> grad_keys,
                                        TypedView<void> grad_values) {
  using T = Tiles<kTile, kWidth>;
  float* q_tile = comm::dynamic_shared<float>();
  float* grad_tile = q_tile + T::kFloats;
  float* k_tile = grad_tile + T::kFloats;
  float* v_tile = k_tile + T::kFloats;
  float* p_weights = v_tile + T::kFloats;
  float* ds_weights = p_weights + T::kScoreFloats;
  const std::int64_t width = in.shape.width;
  for (std::int64_t item = blockIdx.x; item < in.shape.batch * items.count; item += gridDim.x) {
    const Strip& strip = items.strips[item % items.count];
    const std::int64_t b = item / items.count;
    const std::int64_t h = strip.head;
    const Part keys = part_of(moved(strip.run, in.first_key), strip.first, kTile);
    __syncthreads();
    load_part<T>(in.keys, keys, b, h, width, k_tile);
    load_part<T>(in.values, keys, b, h, width, v_tile);
    typename T::Sums grad_k = {};
    typename T::Sums grad_v = {};
    for (std::int64_t m = strip.first_met; m < strip.end_met; ++m) {
      const TokenRun run = moved(items.met[m], in.first_query);
      const std::int64_t blind = in.visibility.blind(keys.position(0), run);
      for (std::int64_t first_query = blind / kTile * kTile; first_query < run.count; first_query += kTile) {
        const Part queries = part_of(run, first_query, kTile);
        __syncthreads();
        load_part<T>(in.queries, queries, b, h, width, q_tile);
        load_part<T>(results.grad_output, queries, b, h, width, grad_tile);
        __syncthreads();
        typename T::Scores p;
        typename T::Scores ds;
        T::inner_products(q_tile, k_tile, static_cast<int>(width), p);
        T::inner_products(grad_tile, v_tile, static_cast<int>(width), ds);
        score_gradients<kTile, kWidth>(in, draws, results, b, h, queries, keys, p, ds);
        put_scores<kTile, kWidth>(p, p_weights);
        put_scores<kTile, kWidth>(ds, ds_weights);
        __syncthreads();
        T::add_transposed_product(p_weights, grad_tile, grad_v);
        T::add_transposed_product(ds_weights, q_tile, grad_k);
      }
    }
    T::add(grad_k, keys.count, width, grad_keys.token_stride * strip.run.index_step, grad_keys.at(b, keys.token(0), h));
    T::add(grad_v, keys.count, width, grad_values.token_stride * strip.run.index_step,
           grad_values.at(b, keys.token(0), h));
  }
}

template <class E>
Inputs inputs_in_kernel(const DeviceAttentionInputs<E>& in, const DeviceAttentionPattern& pattern,
                        std::size_t statistics) {
  const HeadShape& q = in.queries.shape;
  const HeadShape& k = in.keys.shape;
  const DeviceAttentionMask& mask = in.mask;
  DROPTEST_CHECK(k == in.values.shape && q.batch == k.batch && q.heads == k.heads && q.width == k.width,
                 "queries, keys and values of different shapes");
  DROPTEST_CHECK(pattern.width() == q.width, "a pattern of another width");
  DROPTEST_CHECK(statistics >= static_cast<std::size_t>(q.batch * q.heads * q.tokens), "log-sum-exps of other queries");
  DROPTEST_CHECK(mask.documents.empty() || mask.documents.size() == static_cast<std::size_t>(q.batch * mask.positions),
                 "documents of other sequences");
  DROPTEST_CHECK(
      mask.added.empty() || mask.added.size() == static_cast<std::size_t>(q.batch * mask.positions * mask.positions),
      "a mask of other sequences");
  DROPTEST_CHECK(in.absent.empty() || in.absent.size() == static_cast<std::size_t>(k.tokens * k.batch * k.heads),
                 "absences of other keys");
  return {q,
          typed_view_in_kernel(in.queries, "queries"),
          typed_view_in_kernel(in.keys, "keys"),
          typed_view_in_kernel(in.values, "values"),
          {mask.causality == Causality::kCausal, mask.positions,
           mask.documents.empty() ? nullptr : mask.documents.data(), mask.added.empty() ? nullptr : mask.added.data(),
           in.absent.empty() ? nullptr : in.absent.data(), q.batch, q.heads},
          static_cast<float>(score_scale(q.width)),
          in.first_query,
          in.first_key};
}

Items items_of(const DeviceAttentionPattern::Side& side) {
  return {side.strips.elems().data(), static_cast<std::int64_t>(side.strips.elems().size()), side.met.elems().data()};
}

comm::LaunchShape shape_of(const Items& items, std::int64_t batch, int floats) {
  return {std::min(static_cast<std::uint64_t>(batch * items.count), kMostBlocks), kTileThreads,
          static_cast<std::size_t>(floats) * sizeof(float)};
}

/// Blocks of one kind of tokens with the runs of the other kind.
struct HostSide {
  std::vector<Strip> strips;
  std::vector<TokenRun> met;

  void add(const std::vector<TokenRun>& own, const std::vector<TokenRun>& others, std::int64_t head,
           std::int64_t tile) {
    const auto first_met = static_cast<std::int64_t>(met.size());
    met.insert(met.end(), others.begin(), others.end());
    for (const TokenRun& run : own) {
      for (std::int64_t first = 0; first < run.count; first += tile) {
        strips.push_back({run, first, head, first_met, static_cast<std::int64_t>(met.size())});
      }
    }
  }
};

template <class T>
comm::DeviceBuffer<T> on_device(const std::vector<T>& values, comm::Stream& stream) {
  comm::DeviceBuffer<T> buffer(values.size(), "pattern of attention");
  if (!values.empty()) {
    comm::copy_to_device(std::as_bytes(std::span(values)), reinterpret_cast<std::byte*>(buffer.elems().data()), stream);
  }
  return buffer;
}

void check_keys(const std::vector<AttentionBlock>& blocks) {
  std::vector<std::int64_t> keys;
  for (const AttentionBlock& block : blocks) {
    for (const TokenRun& run : block.keys) {
      for (std::int64_t i = 0; i < run.count; ++i) keys.push_back(run.index + i * run.index_step);
    }
  }
  std::ranges::sort(keys);
  DROPTEST_CHECK(std::ranges::adjacent_find(keys) == keys.end(), "attention on a device: a key in two blocks");
}

}  // namespace

DeviceAttentionPattern::DeviceAttentionPattern(const AttentionPattern& pattern, std::int64_t heads, std::int64_t width,
                                               comm::Stream& stream)
    : width_(width) {
  DROPTEST_CHECK(width >= 1 && width <= kMostWidth,
                 "attention on a device: got heads of " + std::to_string(width) + ", want 1 to 256");
  DROPTEST_CHECK(pattern.size() == 1 || static_cast<std::int64_t>(pattern.size()) == heads, "a pattern of other heads");
  const std::int64_t tile = tile_of(width);
  HostSide queries;
  HostSide keys;
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::vector<AttentionBlock>& blocks = pattern[pattern.size() == 1 ? 0 : static_cast<std::size_t>(head)];
    if (head == 0 || pattern.size() > 1) check_keys(blocks);
    for (const AttentionBlock& block : blocks) {
      queries.add(block.queries, block.keys, head, tile);
      keys.add(block.keys, block.queries, head, tile);
    }
  }
  queries_ = {on_device(queries.strips, stream), on_device(queries.met, stream)};
  keys_ = {on_device(keys.strips, stream), on_device(keys.met, stream)};
  stream.synchronize();  // the vectors end with this scope
}

template <class E>
void begin_attention(const DeviceHeadView<E>& output, comm::DeviceSpan<float> log_sum_exp, comm::Stream& stream) {
  comm::launch("begin_attention", begin_attention_kernel<DeviceElement<E>>, comm::cover(output.shape.elems()), stream,
               view_in_kernel(output, "output"), output.shape, log_sum_exp.data());
}

template <class E>
void attend(const DeviceAttentionInputs<E>& inputs, const DeviceAttentionPattern& pattern,
            const DeviceHeadView<E>& output, comm::DeviceSpan<float> log_sum_exp, comm::Stream& stream) {
  const Inputs in = inputs_in_kernel(inputs, pattern, log_sum_exp.size());
  const Items items = items_of(pattern.queries());
  with_draws(inputs.dropout, [&](const auto& draws) {
    with_tiles(in.shape.width, [&]<int kTile, int kWidth>() {
      using T = Tiles<kTile, kWidth>;
      comm::launch("attend", attend_kernel<kTile, kWidth, std::decay_t<decltype(draws)>>,
                   shape_of(items, in.shape.batch, 2 * T::kFloats + T::kScoreFloats), stream, in, draws, items,
                   typed_view_in_kernel(output, "output"), log_sum_exp.data());
    });
  });
}

template <class E>
void attend_backward(const DeviceAttentionInputs<E>& inputs, const DeviceAttentionPattern& pattern,
                     const DeviceAttentionResults<E>& results, const DeviceAttentionGradients<E>& gradients,
                     comm::DeviceSpan<float> scratch, comm::Stream& stream) {
  const Inputs in = inputs_in_kernel(inputs, pattern, std::min(results.log_sum_exp.size(), scratch.size()));
  comm::launch("token_delta", token_delta_kernel<DeviceElement<E>>,
               comm::cover(in.shape.elems() / static_cast<std::uint64_t>(in.shape.width) * kWarp), stream,
               view_in_kernel(results.grad_output, "gradient of the output"), view_in_kernel(results.output, "output"),
               in.shape, results.log_sum_exp.data(),
               results.grad_log_sum_exp.empty() ? nullptr : results.grad_log_sum_exp.data(), scratch.data());
  const Results of_output{typed_view_in_kernel(results.grad_output, "gradient of the output"),
                          results.log_sum_exp.data(), scratch.data()};
  const Items queries = items_of(pattern.queries());
  const Items keys = items_of(pattern.keys());
  with_draws(inputs.dropout, [&](const auto& draws) {
    using Draws = std::decay_t<decltype(draws)>;
    with_tiles(in.shape.width, [&]<int kTile, int kWidth>() {
      using T = Tiles<kTile, kWidth>;
      comm::launch("attend_grad_queries", attend_grad_queries_kernel<kTile, kWidth, Draws>,
                   shape_of(queries, in.shape.batch, 4 * T::kFloats + T::kScoreFloats), stream, in, draws, queries,
                   of_output, typed_view_in_kernel(gradients.queries, "gradient of queries"));
      comm::launch("attend_grad_keys", attend_grad_keys_kernel<kTile, kWidth, Draws>,
                   shape_of(keys, in.shape.batch, 4 * T::kFloats + 2 * T::kScoreFloats), stream, in, draws, keys,
                   of_output, typed_view_in_kernel(gradients.keys, "gradient of keys"),
                   typed_view_in_kernel(gradients.values, "gradient of values"));
    });
  });
}

#define DROPTEST_DEVICE_ATTENTION(E)                                                                             \
  template void begin_attention(const DeviceHeadView<E>&, comm::DeviceSpan<float>, comm::Stream&);               \
  template void attend(const DeviceAttentionInputs<E>&, const DeviceAttentionPattern&, const DeviceHeadView<E>&, \
                       comm::DeviceSpan<float>, comm::Stream&);                                                  \
  template void attend_backward(const DeviceAttentionInputs<E>&, const DeviceAttentionPattern&,                  \
                                const DeviceAttentionResults<E>&, const DeviceAttentionGradients<E>&,            \
                                comm::DeviceSpan<float>, comm::Stream&);
DROPTEST_DEVICE_ATTENTION(float)
DROPTEST_DEVICE_ATTENTION(comm::Bf16)
DROPTEST_DEVICE_ATTENTION(comm::Fp16)
#undef DROPTEST_DEVICE_ATTENTION

}  // namespace droptest::models
