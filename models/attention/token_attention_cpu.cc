// SPDX-License-Identifier: Apache-2.0
// B = batch, H = heads, D = width of a head.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "models/attention/token_attention.h"
#include "models/kernels/attention.h"
#include "models/kernels/chunks.h"
#include "models/kernels/exp_math.h"
#include "models/kernels/lanes.h"
#include "models/kernels/matmul.h"
#include "models/kernels/vector_width.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

// A tile of scores and a strip of outputs stay in the second-level cache.
constexpr std::int64_t kStripQueries = 64;
constexpr std::int64_t kTileKeys = 256;

template <class T>
constexpr T kNothingSeen = -std::numeric_limits<T>::infinity();

/// A sequence of the batch, and a head.
struct Place {
  std::int64_t batch = 0;
  std::int64_t head = 0;
};

const std::vector<AttentionBlock>& blocks_of(const AttentionPattern& pattern, std::int64_t head) {
  return pattern[pattern.size() == 1 ? 0 : static_cast<std::size_t>(head)];
}

/// The rows of consecutive tokens of a run, as a matrix [count, D].
template <class T>
auto rows_of(const HeadView<T>& view, Place at, const TokenRun& run, std::int64_t first, std::int64_t count) {
  T* data = view.at(at.batch, run.index + first * run.index_step, at.head);
  const std::int64_t stride = view.token_stride * run.index_step;
  if constexpr (std::is_const_v<T>) {
    return ConstMatrix<std::remove_const_t<T>>{data, count, view.shape.width, stride};
  } else {
    return Matrix<T>{data, count, view.shape.width, stride};
  }
}

/// Consecutive queries of one run, and consecutive keys of another, of which some pair is visible unless the mask's
/// arrays hide it.
struct Tile {
  const TokenRun& queries;
  std::int64_t first_query;
  std::int64_t query_count;
  const TokenRun& keys;
  std::int64_t first_key;
  std::int64_t key_count;
};

/// Calls f(tile) for the tiles of a strip of queries, in the order of the keys, up to the last key that causality lets
/// the last query see. Tiles that AttentionMask::hides() are left out.
template <class F>
void for_tiles(const AttentionBlock& block, const AttentionMask& mask, std::int64_t batch, const TokenRun& queries,
               std::int64_t first, std::int64_t count, const F& f) {
  const std::int64_t last = queries.positions(first + count - 1).first;
  for (const TokenRun& keys : block.keys) {
    const std::int64_t seen = mask.visible(last, keys.positions(0), keys.count);
    for (std::int64_t key = 0; key < seen; key += kTileKeys) {
      const std::int64_t key_count = std::min(kTileKeys, seen - key);
      if (mask.hides(batch, queries.positions(first), count, keys.positions(key), key_count)) continue;
      f(Tile{queries, first, count, keys, key, key_count});
    }
  }
}

/// Calls f(block, run, first, count) for the strips of queries of a head.
template <class F>
void for_strips(const std::vector<AttentionBlock>& blocks, const F& f) {
  for (const AttentionBlock& block : blocks) {
    for (const TokenRun& run : block.queries) {
      for (std::int64_t first = 0; first < run.count; first += kStripQueries) {
        f(block, run, first, std::min(kStripQueries, run.count - first));
      }
    }
  }
}

/// The scores of a tile; minus infinity for keys that are invisible or absent. `scores` has room for whole tiles.
template <class T>
Matrix<T> masked_scores(const AttentionInputs<T>& inputs, Place at, const Tile& tile, T* scores) {
  const Matrix<T> result{scores, tile.query_count, tile.key_count, tile.key_count};
  matmul<T>(Transpose::kNo, rows_of(inputs.queries, at, tile.queries, tile.first_query, tile.query_count),
            Transpose::kYes, rows_of(inputs.keys, at, tile.keys, tile.first_key, tile.key_count),
            static_cast<T>(score_scale(inputs.queries.shape.width)), T(0), result, 1);
  const PositionSteps queries = tile.queries.positions(tile.first_query);
  const PositionSteps keys = tile.keys.positions(tile.first_key);
  if (inputs.mask.has_values()) inputs.mask.add_to(at.batch, queries, keys, result);
  if (inputs.mask.causality() == Causality::kCausal) {
    for (std::int64_t i = 0; i < result.rows; ++i) {
      const std::int64_t seen = inputs.mask.visible(queries.first + i * queries.step, keys, result.columns);
      T* row = scores + i * result.stride;
      std::fill(row + seen, row + result.columns, kNothingSeen<T>);
    }
  }
  if (inputs.absent.empty()) return result;
  const HeadShape& shape = inputs.keys.shape;
  for (std::int64_t j = 0; j < result.columns; ++j) {
    const std::int64_t token = tile.keys.index + (tile.first_key + j) * tile.keys.index_step;
    if (inputs.absent[static_cast<std::size_t>((token * shape.batch + at.batch) * shape.heads + at.head)] == 0)
      continue;
    for (std::int64_t i = 0; i < result.rows; ++i) scores[i * result.stride + j] = kNothingSeen<T>;
  }
  return result;
}

/// The running softmax of a strip: for each query the largest score so far, the sum of exp(score - largest), and the
/// sum of the values weighted by these exponentials.
template <class T>
struct RunningSoftmax {
  std::array<T, kStripQueries> largest;
  std::array<T, kStripQueries> sum;
  Matrix<T> weighted;  // [queries, D]
};

/// Turns scores into exponentials relative to the largest score so far, and rescales the state to it.
template <class T>
void take_scores(const Matrix<T>& scores, RunningSoftmax<T>& state) {
  run_vectorised(widest_vectors(), [&] {
    for (std::int64_t i = 0; i < scores.rows; ++i) {
      T* row = scores.data + i * scores.stride;
      const T before = state.largest[static_cast<std::size_t>(i)];
      const T in_row = lane_max(row, scores.columns);
      const T largest = before < in_row ? in_row : before;
      // Without a visible key all exponentials are 0 relative to anything finite.
      const T base = largest == kNothingSeen<T> ? T(0) : largest;
      for (std::int64_t j = 0; j < scores.columns; ++j) row[j] = exp_plain(row[j] - base);
      const T shrink = exp_plain(before - base);
      T& sum = state.sum[static_cast<std::size_t>(i)];
      sum = sum * shrink + lane_sum<T>(scores.columns, [row](std::int64_t j) { return row[j]; });
      state.largest[static_cast<std::size_t>(i)] = largest;
      T* weighted = state.weighted.data + i * state.weighted.stride;
      for (std::int64_t d = 0; d < state.weighted.columns; ++d) weighted[d] *= shrink;
    }
  });
}

/// exp(score - log-sum-exp), 0 for queries that see nothing.
template <class T>
void take_probabilities(const Matrix<T>& scores, const T* log_sum_exp) {
  run_vectorised(widest_vectors(), [=] {
    for (std::int64_t i = 0; i < scores.rows; ++i) {
      T* row = scores.data + i * scores.stride;
      const T base = log_sum_exp[i] == kNothingSeen<T> ? std::numeric_limits<T>::infinity() : log_sum_exp[i];
      for (std::int64_t j = 0; j < scores.columns; ++j) row[j] = exp_plain(row[j] - base);
    }
  });
}

/// Calls body(j, factor) for the keys j of a query of a tile, in order.
template <class T, class Body>
[[gnu::always_inline]] inline void for_dropped_keys(const DropoutMask& mask, Place at, const Tile& tile,
                                                    std::int64_t query, const Body& body) {
  const DropoutRow row(mask, mask.first_sample + at.batch, mask.first_head + at.head,
                       mask.first_position + tile.queries.positions(tile.first_query + query).first);
  const PositionSteps keys = tile.keys.positions(tile.first_key);
  for_dropped_row<T>(row, mask.first_position + keys.first, tile.key_count, body, keys.step);
}

/// Dropout of a tile of probabilities or of their exponentials.
template <class T>
void drop(const DropoutMask& mask, Place at, const Tile& tile, const Matrix<T>& probabilities) {
  if (!mask.is_on()) return;
  run_vectorised(widest_vectors(), [&] {
    for (std::int64_t i = 0; i < probabilities.rows; ++i) {
      T* p = probabilities.data + i * probabilities.stride;
      for_dropped_keys<T>(mask, at, tile, i, [p](std::int64_t j, T factor) { p[j] *= factor; });
    }
  });
}

/// grad <- p (factor grad - inner), and p <- factor p, with the factors of dropout. `grad` has the gradients of the
/// probabilities after dropout, and gets those of the scores.
template <class T>
void take_score_gradients(const DropoutMask& mask, Place at, const Tile& tile, const Matrix<T>& probabilities,
                          const Matrix<T>& grad, const T* inner) {
  run_vectorised(widest_vectors(), [&] {
    for (std::int64_t i = 0; i < grad.rows; ++i) {
      T* p = probabilities.data + i * probabilities.stride;
      T* g = grad.data + i * grad.stride;
      const T mean = inner[i];
      for_dropped_keys<T>(mask, at, tile, i, [p, g, mean](std::int64_t j, T factor) {
        g[j] = p[j] * (factor * g[j] - mean);
        p[j] *= factor;
      });
    }
  });
}

/// grad <- p (grad - inner): the gradient of the scores.
template <class T>
void take_score_gradients(const Matrix<T>& probabilities, const Matrix<T>& grad, const T* inner) {
  run_vectorised(widest_vectors(), [=] {
    for (std::int64_t i = 0; i < grad.rows; ++i) {
      const T* p = probabilities.data + i * probabilities.stride;
      T* g = grad.data + i * grad.stride;
      for (std::int64_t j = 0; j < grad.columns; ++j) g[j] = p[j] * (g[j] - inner[i]);
    }
  });
}

template <class T>
ConstMatrix<T> read(const Matrix<T>& matrix) {
  return {matrix.data, matrix.rows, matrix.columns, matrix.stride};
}

/// The index of a query's entry in log_sum_exp [batch, heads, queries].
std::size_t statistic(const HeadShape& queries, Place at, std::int64_t token) {
  return static_cast<std::size_t>((at.batch * queries.heads + at.head) * queries.tokens + token);
}

template <class T>
void check(const AttentionInputs<T>& inputs, const AttentionPattern& pattern, std::size_t statistics) {
  const HeadShape& q = inputs.queries.shape;
  const HeadShape& k = inputs.keys.shape;
  DROPTEST_CHECK(k == inputs.values.shape && q.batch == k.batch && q.heads == k.heads && q.width == k.width,
                 "queries, keys and values of different shapes");
  DROPTEST_CHECK(pattern.size() == 1 || static_cast<std::int64_t>(pattern.size()) == q.heads,
                 "a pattern of other heads");
  DROPTEST_CHECK(statistics == static_cast<std::size_t>(q.batch * q.heads * q.tokens), "log-sum-exps of other queries");
  DROPTEST_CHECK(
      inputs.absent.empty() || inputs.absent.size() == static_cast<std::size_t>(k.tokens * k.batch * k.heads),
      "absences of other keys");
}

std::int64_t scratch_elems(std::int64_t width) { return 2 * kStripQueries * kTileKeys + kStripQueries * width; }

}  // namespace

AttentionPattern pattern_of(std::vector<TokenRun> queries, std::vector<TokenRun> keys) {
  return {{AttentionBlock{std::move(queries), std::move(keys)}}};
}

std::uint64_t token_attention_scratch_elems(std::int64_t width, int threads) {
  return static_cast<std::uint64_t>(threads * scratch_elems(width));
}

template <class T>
void begin_attention(const HeadView<T>& output, std::span<T> log_sum_exp) {
  std::ranges::fill(log_sum_exp, kNothingSeen<T>);
  const HeadShape& shape = output.shape;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      for (std::int64_t h = 0; h < shape.heads; ++h) std::fill_n(output.at(b, t, h), shape.width, T(0));
    }
  }
}

template <class T>
void attend(const AttentionInputs<T>& inputs, const AttentionPattern& pattern, const HeadView<T>& output,
            std::span<T> log_sum_exp, std::span<T> scratch, const Team& team) {
  const SingleThreadedLibraries single_threaded;
  check(inputs, pattern, log_sum_exp.size());
  const HeadShape& shape = inputs.queries.shape;
  const std::int64_t width = shape.width;
  for_chunks_by_worker(shape.batch * shape.heads, 1, team, [&](Team::Worker worker, std::int64_t index, std::int64_t) {
    const Place at{index / shape.heads, index % shape.heads};
    T* own = scratch.data() + worker * scratch_elems(width);
    RunningSoftmax<T> state{{}, {}, {own + 2 * kStripQueries * kTileKeys, 0, width, width}};
    for_strips(blocks_of(pattern, at.head), [&](const AttentionBlock& block, const TokenRun& run, std::int64_t first,
                                                std::int64_t count) {
      state.weighted.rows = count;
      const Matrix<T> out = rows_of(output, at, run, first, count);
      // An attention so far is one key with the score log_sum_exp and the value output.
      for (std::int64_t i = 0; i < count; ++i) {
        const T so_far = log_sum_exp[statistic(shape, at, run.index + (first + i) * run.index_step)];
        const bool has_seen = so_far != kNothingSeen<T>;
        state.largest[static_cast<std::size_t>(i)] = so_far;
        state.sum[static_cast<std::size_t>(i)] = has_seen ? T(1) : T(0);
        T* weighted = state.weighted.data + i * width;
        for (std::int64_t d = 0; d < width; ++d) weighted[d] = has_seen ? out.data[i * out.stride + d] : T(0);
      }
      for_tiles(block, inputs.mask, at.batch, run, first, count, [&](const Tile& tile) {
        const Matrix<T> scores = masked_scores(inputs, at, tile, own);
        take_scores(scores, state);
        drop(inputs.dropout, at, tile, scores);
        matmul<T>(Transpose::kNo, read(scores), Transpose::kNo,
                  rows_of(inputs.values, at, tile.keys, tile.first_key, tile.key_count), T(1), T(1), state.weighted, 1);
      });
      for (std::int64_t i = 0; i < count; ++i) {
        const T sum = state.sum[static_cast<std::size_t>(i)];
        const T inverse = sum == T(0) ? T(0) : T(1) / sum;
        for (std::int64_t d = 0; d < width; ++d)
          out.data[i * out.stride + d] = state.weighted.data[i * width + d] * inverse;
        log_sum_exp[statistic(shape, at, run.index + (first + i) * run.index_step)] =
            sum == T(0) ? kNothingSeen<T> : state.largest[static_cast<std::size_t>(i)] + std::log(sum);
      }
    });
  });
}

template <class T>
void attend_backward(const AttentionInputs<T>& inputs, const AttentionPattern& pattern,
                     const AttentionResults<T>& results, const AttentionGradients<T>& gradients, std::span<T> scratch,
                     const Team& team) {
  const SingleThreadedLibraries single_threaded;
  check(inputs, pattern, results.log_sum_exp.size());
  const HeadShape& shape = inputs.queries.shape;
  const std::int64_t width = shape.width;
  const T scale = static_cast<T>(score_scale(width));
  for_chunks_by_worker(shape.batch * shape.heads, 1, team, [&](Team::Worker worker, std::int64_t index, std::int64_t) {
    const Place at{index / shape.heads, index % shape.heads};
    T* own = scratch.data() + worker * scratch_elems(width);
    std::array<T, kStripQueries> log_sum_exp;
    std::array<T, kStripQueries> inner;  // of output and grad_output, and so of the probabilities and their gradients
    for_strips(blocks_of(pattern, at.head), [&](const AttentionBlock& block, const TokenRun& run, std::int64_t first,
                                                std::int64_t count) {
      const ConstMatrix<T> queries = rows_of(inputs.queries, at, run, first, count);
      const ConstMatrix<T> out = rows_of(results.output, at, run, first, count);
      const ConstMatrix<T> dout = rows_of(results.grad_output, at, run, first, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::size_t of_query = statistic(shape, at, run.index + (first + i) * run.index_step);
        const T* o = out.data + i * out.stride;
        const T* g = dout.data + i * dout.stride;
        log_sum_exp[static_cast<std::size_t>(i)] = results.log_sum_exp[of_query];
        inner[static_cast<std::size_t>(i)] = lane_sum<T>(width, [o, g](std::int64_t d) { return o[d] * g[d]; });
        if (!results.grad_log_sum_exp.empty() && results.log_sum_exp[of_query] != kNothingSeen<T>)
          inner[static_cast<std::size_t>(i)] -= results.grad_log_sum_exp[of_query];
      }
      for_tiles(block, inputs.mask, at.batch, run, first, count, [&](const Tile& tile) {
        const auto keys = [&](const auto& view) {
          return rows_of(view, at, tile.keys, tile.first_key, tile.key_count);
        };
        const Matrix<T> p = masked_scores(inputs, at, tile, own);
        take_probabilities(p, log_sum_exp.data());
        const Matrix<T> ds{own + kStripQueries * kTileKeys, count, tile.key_count, tile.key_count};
        matmul<T>(Transpose::kNo, dout, Transpose::kYes, keys(inputs.values), T(1), T(0), ds, 1);
        if (inputs.dropout.is_on()) {
          take_score_gradients(inputs.dropout, at, tile, p, ds, inner.data());
        } else {
          take_score_gradients(p, ds, inner.data());
        }
        matmul<T>(Transpose::kYes, read(p), Transpose::kNo, dout, T(1), T(1), keys(gradients.values), 1);
        matmul<T>(Transpose::kNo, read(ds), Transpose::kNo, keys(inputs.keys), scale, T(1),
                  rows_of(gradients.queries, at, run, first, count), 1);
        matmul<T>(Transpose::kYes, read(ds), Transpose::kNo, queries, scale, T(1), keys(gradients.keys), 1);
      });
    });
  });
}

template <class T>
void merge_attention(const HeadView<const T>& other_output, std::span<const T> other_log_sum_exp,
                     const HeadView<T>& output, std::span<T> log_sum_exp) {
  const HeadShape& shape = output.shape;
  DROPTEST_CHECK(shape == other_output.shape && log_sum_exp.size() == other_log_sum_exp.size(),
                 "attentions of different queries");
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t t = 0; t < shape.tokens; ++t) {
        const std::size_t of_query = statistic(shape, {b, h}, t);
        T& mine = log_sum_exp[of_query];
        const T other = other_log_sum_exp[of_query];
        if (other == kNothingSeen<T>) continue;
        const T largest = std::max(mine, other);
        const T weight = std::exp(mine - largest);
        const T other_weight = std::exp(other - largest);
        const T sum = weight + other_weight;
        T* o = output.at(b, t, h);
        const T* p = other_output.at(b, t, h);
        for (std::int64_t d = 0; d < shape.width; ++d) o[d] = (weight * o[d] + other_weight * p[d]) / sum;
        mine = largest + std::log(sum);
      }
    }
  }
}

#define DROPTEST_TOKEN_ATTENTION(T)                                                                             \
  template void begin_attention(const HeadView<T>&, std::span<T>);                                              \
  template void attend(const AttentionInputs<T>&, const AttentionPattern&, const HeadView<T>&, std::span<T>,    \
                       std::span<T>, const Team&);                                                              \
  template void attend_backward(const AttentionInputs<T>&, const AttentionPattern&, const AttentionResults<T>&, \
                                const AttentionGradients<T>&, std::span<T>, const Team&);                       \
  template void merge_attention(const HeadView<const T>&, std::span<const T>, const HeadView<T>&, std::span<T>);
DROPTEST_TOKEN_ATTENTION(float)
DROPTEST_TOKEN_ATTENTION(double)
#undef DROPTEST_TOKEN_ATTENTION

}  // namespace droptest::models
