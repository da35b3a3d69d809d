// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "models/kernels/chunks.h"
#include "models/kernels/exp_math.h"
#include "models/kernels/lanes.h"
#include "models/kernels/matmul.h"

namespace droptest::models {
namespace {

// Queries are taken in blocks of this many rows; a block needs only the keys up to its last row, which saves nearly
// half of the products of long sequences.
constexpr std::int64_t kBlockRows = 64;

template <class T>
T score_scale(const AttentionShape& shape) {
  return static_cast<T>(1.0 / std::sqrt(static_cast<double>(shape.head_width)));
}

/// Turns scores [rows, keys] of the queries first_row, first_row + 1, ... into probabilities, 0 for future keys.
template <class T>
void causal_softmax(const Matrix<T>& scores, std::int64_t first_row) {
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    T* row = scores.data + i * scores.stride;
    const std::int64_t visible = first_row + i + 1;
    const T largest = lane_max(row, visible);
    for (std::int64_t j = 0; j < visible; ++j) row[j] = exp_plain(row[j] - largest);
    const T inverse = T(1) / lane_sum<T>(visible, [row](std::int64_t j) { return row[j]; });
    for (std::int64_t j = 0; j < visible; ++j) row[j] *= inverse;
    std::fill(row + visible, row + scores.columns, T(0));
  }
}

/// grad <- p (grad - sum(p grad)) per row: the softmax' gradient; 0 where p is.
template <class T>
void softmax_backward(const ConstMatrix<T>& probabilities, const Matrix<T>& grad) {
  for (std::int64_t i = 0; i < grad.rows; ++i) {
    const T* p = probabilities.data + i * probabilities.stride;
    T* g = grad.data + i * grad.stride;
    const T inner = lane_sum<T>(grad.columns, [p, g](std::int64_t j) { return p[j] * g[j]; });
    for (std::int64_t j = 0; j < grad.columns; ++j) g[j] = p[j] * (g[j] - inner);
  }
}

}  // namespace

std::uint64_t attention_probability_elems(const AttentionShape& shape) {
  return static_cast<std::uint64_t>(shape.batch * shape.heads * shape.length * shape.length);
}

std::uint64_t attention_scratch_elems(const AttentionShape& shape, int threads) {
  return static_cast<std::uint64_t>(threads) * static_cast<std::uint64_t>(kBlockRows * shape.length);
}

template <class T>
void attention_forward(std::span<const T> qkv, const AttentionShape& shape, std::span<T> probabilities,
                       std::span<T> output, int threads) {
  const std::int64_t part = shape.heads * shape.head_width;
  const std::int64_t length = shape.length;
  const std::int64_t width = shape.head_width;
  for_chunks(shape.batch * shape.heads, 1, threads, [&](std::int64_t begin, std::int64_t) {
    const std::int64_t sequence = begin / shape.heads;
    const std::int64_t head = begin % shape.heads;
    const T* q = qkv.data() + sequence * length * 3 * part + head * width;
    const T* k = q + part;
    const T* v = k + part;
    T* p = probabilities.data() + begin * length * length;
    T* o = output.data() + sequence * length * part + head * width;
    for (std::int64_t row = 0; row < length; row += kBlockRows) {
      const std::int64_t rows = std::min(kBlockRows, length - row);
      const std::int64_t keys = row + rows;
      const Matrix<T> block{p + row * length, rows, keys, length};
      matmul<T>(Transpose::kNo, {q + row * 3 * part, rows, width, 3 * part}, Transpose::kYes,
                {k, keys, width, 3 * part}, score_scale<T>(shape), T(0), block, 1);
      causal_softmax(block, row);
      matmul<T>(Transpose::kNo, {block.data, rows, keys, length}, Transpose::kNo, {v, keys, width, 3 * part}, T(1),
                T(0), {o + row * part, rows, width, part}, 1);
    }
  });
}

template <class T>
void attention_backward(std::span<const T> grad_output, std::span<const T> qkv, std::span<const T> probabilities,
                        const AttentionShape& shape, std::span<T> grad_qkv, std::span<T> scratch, int threads) {
  const std::int64_t part = shape.heads * shape.head_width;
  const std::int64_t stride = 3 * part;
  const std::int64_t length = shape.length;
  const std::int64_t width = shape.head_width;
  const T scale = score_scale<T>(shape);
  for_chunks(shape.batch * shape.heads, 1, threads, [&](std::int64_t begin, std::int64_t) {
    const std::int64_t sequence = begin / shape.heads;
    const std::int64_t offset = sequence * length * stride + begin % shape.heads * width;
    const T* q = qkv.data() + offset;
    const T* k = q + part;
    const T* v = k + part;
    T* dq = grad_qkv.data() + offset;
    T* dk = dq + part;
    T* dv = dk + part;
    const T* p = probabilities.data() + begin * length * length;
    const T* dout = grad_output.data() + sequence * length * part + begin % shape.heads * width;
    T* own = scratch.data() + (threads <= 1 ? 0 : omp_get_thread_num() * kBlockRows * length);
    // From the last block, which reaches all keys and so sets every row of dk and dv, back to the first.
    for (std::int64_t row = (length - 1) / kBlockRows * kBlockRows; row >= 0; row -= kBlockRows) {
      const std::int64_t rows = std::min(kBlockRows, length - row);
      const std::int64_t keys = row + rows;
      const T keep = keys == length ? T(0) : T(1);
      const ConstMatrix<T> p_block{p + row * length, rows, keys, length};
      const ConstMatrix<T> dout_block{dout + row * part, rows, width, part};
      matmul<T>(Transpose::kYes, p_block, Transpose::kNo, dout_block, T(1), keep, {dv, keys, width, stride}, 1);
      const Matrix<T> ds{own, rows, keys, keys};
      matmul<T>(Transpose::kNo, dout_block, Transpose::kYes, {v, keys, width, stride}, T(1), T(0), ds, 1);
      softmax_backward(p_block, ds);
      const ConstMatrix<T> ds_read{own, rows, keys, keys};
      matmul<T>(Transpose::kNo, ds_read, Transpose::kNo, {k, keys, width, stride}, scale, T(0),
                {dq + row * stride, rows, width, stride}, 1);
      matmul<T>(Transpose::kYes, ds_read, Transpose::kNo, {q + row * stride, rows, width, stride}, scale, keep,
                {dk, keys, width, stride}, 1);
    }
  });
}

template void attention_forward<float>(std::span<const float>, const AttentionShape&, std::span<float>,
                                       std::span<float>, int);
template void attention_forward<double>(std::span<const double>, const AttentionShape&, std::span<double>,
                                        std::span<double>, int);
template void attention_backward<float>(std::span<const float>, std::span<const float>, std::span<const float>,
                                        const AttentionShape&, std::span<float>, std::span<float>, int);
template void attention_backward<double>(std::span<const double>, std::span<const double>, std::span<const double>,
                                         const AttentionShape&, std::span<double>, std::span<double>, int);

}  // namespace droptest::models
