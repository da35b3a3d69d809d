// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/attention.h"

#include <algorithm>
#include <limits>

#include "models/kernels/attention_head.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/chunks.h"
#include "models/kernels/exp_math.h"
#include "models/kernels/host_floats.h"
#include "models/kernels/lanes.h"
#include "models/kernels/matmul.h"

namespace droptest::models {
namespace {

// Queries are taken in strips of this many rows. A strip needs only the keys up to its last row, which saves nearly
// 50 % of the arithmetic of long sequences, and its scores stay in the second-level cache.
constexpr std::int64_t kStripRows = 64;

/// Two strips of scores for each thread.
template <class T>
T* own_scratch(std::span<T> scratch, const AttentionShape& shape, Team::Worker worker) {
  return scratch.data() + 2 * worker * kStripRows * shape.length;
}

/// The number of visible keys of a row, rounded up to whole vectors if the row has so many columns; so most loops have
/// no remainder. Sets the scores of the future keys among them to minus infinity, which is the probability 0.
template <class T>
std::int64_t cover_visible(T* row, std::int64_t visible, std::int64_t columns) {
  const std::int64_t covered = std::min((visible + kLanes - 1) / kLanes * kLanes, columns);
  for (std::int64_t j = visible; j < covered; ++j) row[j] = -std::numeric_limits<T>::infinity();
  return covered;
}

/// Turns scores of the queries first_row, first_row + 1, ... into probabilities, 0 for future keys, and saves each
/// row's largest score and inverse sum.
template <class T>
void causal_softmax(const Matrix<T>& scores, std::int64_t first_row, T* statistics) {
  run_vectorised(widest_vectors(), [=] {
    for (std::int64_t i = 0; i < scores.rows; ++i) {
      T* row = scores.data + i * scores.stride;
      const std::int64_t covered = cover_visible(row, first_row + i + 1, scores.columns);
      const T largest = lane_max(row, covered);
      for (std::int64_t j = 0; j < covered; ++j) row[j] = exp_plain(row[j] - largest);
      const T inverse = T(1) / lane_sum<T>(covered, [row](std::int64_t j) { return row[j]; });
      for (std::int64_t j = 0; j < covered; ++j) row[j] *= inverse;
      for (std::int64_t j = covered; j < scores.columns; ++j) row[j] = T(0);
      statistics[2 * i] = largest;
      statistics[2 * i + 1] = inverse;
    }
  });
}

/// Recomputes the probabilities of causal_softmax() from its statistics.
template <class T>
void causal_softmax_again(const Matrix<T>& scores, std::int64_t first_row, const T* statistics) {
  run_vectorised(widest_vectors(), [=] {
    for (std::int64_t i = 0; i < scores.rows; ++i) {
      T* row = scores.data + i * scores.stride;
      const std::int64_t covered = cover_visible(row, first_row + i + 1, scores.columns);
      const T largest = statistics[2 * i];
      const T inverse = statistics[2 * i + 1];
      for (std::int64_t j = 0; j < covered; ++j) row[j] = exp_plain(row[j] - largest) * inverse;
      for (std::int64_t j = covered; j < scores.columns; ++j) row[j] = T(0);
    }
  });
}

/// Multiplies rows of probabilities, or of their gradients, by the factors of dropout.
template <class T>
void drop(const DropoutMask& mask, const AttentionShape& shape, std::int64_t index, std::int64_t first_row,
          const Matrix<T>& values) {
  if (!mask.is_on()) return;
  run_vectorised(widest_vectors(), [&] {
    for (std::int64_t i = 0; i < values.rows; ++i) {
      T* row = values.data + i * values.stride;
      for_dropped_row<T>(dropout_of_query(mask, shape, index, first_row + i), mask.first_position, first_row + i + 1,
                         [row](std::int64_t j, T factor) { row[j] *= factor; });
    }
  });
}

/// grad <- p (grad - sum(p grad)) for each row: the gradient of the softmax, 0 if p is 0.
template <class T>
void softmax_backward(const ConstMatrix<T>& probabilities, const Matrix<T>& grad) {
  run_vectorised(widest_vectors(), [=] {
    for (std::int64_t i = 0; i < grad.rows; ++i) {
      const T* p = probabilities.data + i * probabilities.stride;
      T* g = grad.data + i * grad.stride;
      const T inner = lane_sum<T>(grad.columns, [p, g](std::int64_t j) { return p[j] * g[j]; });
      for (std::int64_t j = 0; j < grad.columns; ++j) g[j] = p[j] * (g[j] - inner);
    }
  });
}

}  // namespace

std::uint64_t attention_statistics_elems(const AttentionShape& shape) {
  return static_cast<std::uint64_t>(2 * shape.batch * shape.heads * shape.length);
}

std::uint64_t attention_scratch_elems(const AttentionShape& shape, int threads) {
  return static_cast<std::uint64_t>(threads) * static_cast<std::uint64_t>(2 * kStripRows * shape.length);
}

template <class T>
void attention_forward(std::span<const T> qkv, const AttentionShape& shape, std::span<T> row_statistics,
                       std::span<T> output, std::span<T> scratch, const Team& team, const DropoutMask& dropout) {
  const std::int64_t length = shape.length;
  const std::int64_t width = shape.head_width;
  for_chunks_by_worker(shape.batch * shape.heads, 1, team, [&](Team::Worker worker, std::int64_t index, std::int64_t) {
    const AttentionHead<T> head = attention_head(qkv, shape, index);
    T* statistics = row_statistics.data() + 2 * index * length;
    T* o = output.data() + head.output_offset;
    T* strip = own_scratch(scratch, shape, worker);
    for (std::int64_t row = 0; row < length; row += kStripRows) {
      const std::int64_t rows = std::min(kStripRows, length - row);
      const std::int64_t keys = row + rows;
      const Matrix<T> scores{strip, rows, keys, keys};
      matmul<T>(Transpose::kNo, {head.q + row * head.qkv_stride, rows, width, head.qkv_stride}, Transpose::kYes,
                {head.k, keys, width, head.qkv_stride}, static_cast<T>(score_scale(width)), T(0), scores, 1);
      causal_softmax(scores, row, statistics + 2 * row);
      drop(dropout, shape, index, row, scores);
      matmul<T>(Transpose::kNo, {strip, rows, keys, keys}, Transpose::kNo, {head.v, keys, width, head.qkv_stride}, T(1),
                T(0), {o + row * head.output_stride, rows, width, head.output_stride}, 1);
    }
  });
}

template <class T>
void attention_backward(std::span<const T> grad_output, std::span<const T> qkv, std::span<const T> row_statistics,
                        const AttentionShape& shape, std::span<T> grad_qkv, std::span<T> scratch, const Team& team,
                        const DropoutMask& dropout) {
  const std::int64_t part = shape.heads * shape.head_width;
  const std::int64_t length = shape.length;
  const std::int64_t width = shape.head_width;
  const T scale = static_cast<T>(score_scale(width));
  for_chunks_by_worker(shape.batch * shape.heads, 1, team, [&](Team::Worker worker, std::int64_t index, std::int64_t) {
    const AttentionHead<T> head = attention_head(qkv, shape, index);
    const std::int64_t stride = head.qkv_stride;
    T* dq = grad_qkv.data() + head.qkv_offset;
    T* dk = dq + part;
    T* dv = dk + part;
    const T* dout = grad_output.data() + head.output_offset;
    const T* statistics = row_statistics.data() + 2 * index * length;
    T* p_strip = own_scratch(scratch, shape, worker);
    T* ds_strip = p_strip + kStripRows * length;
    // From the last strip to the first: the last one reaches all keys, and so sets every row of dk and dv.
    for (std::int64_t row = (length - 1) / kStripRows * kStripRows; row >= 0; row -= kStripRows) {
      const std::int64_t rows = std::min(kStripRows, length - row);
      const std::int64_t keys = row + rows;
      const T keep = keys == length ? T(0) : T(1);
      const ConstMatrix<T> q_rows{head.q + row * stride, rows, width, stride};
      const Matrix<T> p{p_strip, rows, keys, keys};
      matmul<T>(Transpose::kNo, q_rows, Transpose::kYes, {head.k, keys, width, stride}, scale, T(0), p, 1);
      causal_softmax_again(p, row, statistics + 2 * row);
      const ConstMatrix<T> p_read{p_strip, rows, keys, keys};
      const ConstMatrix<T> dout_rows{dout + row * part, rows, width, part};
      const Matrix<T> ds{ds_strip, rows, keys, keys};
      matmul<T>(Transpose::kNo, dout_rows, Transpose::kYes, {head.v, keys, width, stride}, T(1), T(0), ds, 1);
      drop(dropout, shape, index, row, ds);
      softmax_backward(p_read, ds);
      drop(dropout, shape, index, row, p);
      matmul<T>(Transpose::kYes, p_read, Transpose::kNo, dout_rows, T(1), keep, {dv, keys, width, stride}, 1);
      const ConstMatrix<T> ds_read{ds_strip, rows, keys, keys};
      matmul<T>(Transpose::kNo, ds_read, Transpose::kNo, {head.k, keys, width, stride}, scale, T(0),
                {dq + row * stride, rows, width, stride}, 1);
      matmul<T>(Transpose::kYes, ds_read, Transpose::kNo, q_rows, scale, keep, {dk, keys, width, stride}, 1);
    }
  });
}

#define DROPTEST_ATTENTION(T)                                                                               \
  template void attention_forward<T>(std::span<const T>, const AttentionShape&, std::span<T>, std::span<T>, \
                                     std::span<T>, const Team&, const DropoutMask&);                        \
  template void attention_backward<T>(std::span<const T>, std::span<const T>, std::span<const T>,           \
                                      const AttentionShape&, std::span<T>, std::span<T>, const Team&,       \
                                      const DropoutMask&);
DROPTEST_ATTENTION(float)
DROPTEST_ATTENTION(double)
#undef DROPTEST_ATTENTION

namespace {

class FlashAttention final : public AttentionKernel {
 public:
  std::uint64_t statistics_elems(const AttentionShape& shape) const override {
    return attention_statistics_elems(shape);
  }
  std::uint64_t forward_scratch_elems(const AttentionShape& shape, int threads) const override {
    return attention_scratch_elems(shape, threads);
  }
  std::uint64_t backward_scratch_elems(const AttentionShape& shape, int threads) const override {
    return attention_scratch_elems(shape, threads);
  }
  bool takes_dropout() const override { return true; }
  void forward(const AttentionForwardTensors& t, const AttentionShape& shape,
               const KernelTarget& target) const override {
    const SingleThreadedLibraries single_threaded;
    visit_host_floats(t.qkv.type, [&](auto type) {
      using T = typename decltype(type)::type;
      attention_forward<T>(t.qkv.as<T>(), shape, t.statistics.as<T>(), t.output.as<T>(), t.scratch.as<T>(),
                           *target.team, t.dropout);
    });
  }
  void backward(const AttentionBackwardTensors& t, const AttentionShape& shape,
                const KernelTarget& target) const override {
    const SingleThreadedLibraries single_threaded;
    visit_host_floats(t.qkv.type, [&](auto type) {
      using T = typename decltype(type)::type;
      attention_backward<T>(t.grad_output.as<T>(), t.qkv.as<T>(), t.statistics.as<T>(), shape, t.grad_qkv.as<T>(),
                            t.scratch.as<T>(), *target.team, t.dropout);
    });
  }
};

}  // namespace

std::unique_ptr<AttentionKernel> make_flash_attention() { return std::make_unique<FlashAttention>(); }

}  // namespace droptest::models
