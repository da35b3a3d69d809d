// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/device_head.h"

#include <algorithm>

#include "models/kernels/bf16.h"

namespace droptest::models {
namespace {

// Rows of logits, and chunks of rows, begin at multiples of these: products then move whole vectors and tiles.
constexpr std::int64_t kStrideElems = 64;
constexpr std::int64_t kChunkRows = 64;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class T>
comm::DeviceSpan<T> rows_of(comm::DeviceSpan<T> values, std::int64_t first, std::int64_t count, std::int64_t width) {
  return values.subspan(static_cast<std::size_t>(first * width), static_cast<std::size_t>(count * width));
}

}  // namespace

LogitChunks logit_chunks(std::int64_t rows, std::int64_t largest_part, std::uint64_t element_bytes,
                         std::uint64_t bytes) {
  LogitChunks chunks;
  chunks.stride = rounded_up(std::max<std::int64_t>(1, largest_part), kStrideElems);
  const auto row_bytes = static_cast<std::uint64_t>(chunks.stride) * element_bytes;
  const auto most_rows = std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / row_bytes));
  const std::int64_t count = (rows + most_rows - 1) / most_rows;
  chunks.rows = std::min({rounded_up((rows + count - 1) / count, kChunkRows), most_rows, rows});
  return chunks;
}

/// A part of the rows, in terms of products and of cross-entropy.
template <class E>
struct DeviceHead<E>::Chunk {
  ProductShape product;
  LogitRows rows;
  comm::DeviceSpan<const E> normalized;
  comm::DeviceSpan<const std::int32_t> targets;
  comm::DeviceSpan<E> logits;
  comm::DeviceSpan<float> largest, sums, predicted, losses;
  comm::DeviceSpan<E> grad_normalized;  ///< empty where nothing is kept
  MessageBuffer<E> message;             ///< likewise, and where messages are of E
};

template <class E>
typename DeviceHead<E>::Chunk DeviceHead<E>::chunk_at(DeviceActivations<E>& buffers, std::int64_t first_row) const {
  const ActivationExtents& extents = buffers.extents();
  HeadBuffers<E>& head = buffers.head;
  const std::int64_t count = std::min(extents.logits_rows, extents.batch.rows() - first_row);
  const auto of_chunk = [count](comm::DeviceSpan<float> values) { return rows_of(values, 0, count, 1); };
  Chunk chunk;
  chunk.product = {count, width, range.count, WeightLayout::kOutputsByInputs, extents.logits_stride};
  chunk.rows = {count, extents.logits_stride, range};
  chunk.normalized = rows_of(head.norm.normalized, first_row, count, width);
  chunk.targets = rows_of(buffers.targets, first_row, count, 1);
  chunk.logits = rows_of(head.logits, 0, count, extents.logits_stride);
  chunk.largest = of_chunk(head.largest);
  chunk.sums = of_chunk(head.sums);
  chunk.predicted = of_chunk(head.predicted);
  chunk.losses = rows_of(head.losses, first_row, count, 1);
  if (!buffers.backward.grad_normalized.empty()) {
    chunk.grad_normalized = rows_of(buffers.backward.grad_normalized, first_row, count, width);
    if (!buffers.message.empty()) chunk.message = rows_of(buffers.message, first_row, count, width);
  }
  return chunk;
}

template <class E>
void DeviceHead<E>::compute_logits(const Chunk& chunk) const {
  products.forward<E>(chunk.product, chunk.normalized, wte, {}, chunk.logits);
}

template <class E>
void DeviceHead<E>::reduce_statistics(const Chunk& chunk) const {
  const auto reduce = [&](comm::DeviceSpan<float> values, comm::ReduceOp op, const char* name) {
    collectives.all_reduce(values, op, {sim::TrafficClass::kControl, name, -1});
  };
  row_maxima<E>(chunk.logits, chunk.rows, chunk.largest, stream);
  reduce(chunk.largest, comm::ReduceOp::kMax, "cross_entropy.max");
  exponential_sums<E>(chunk.logits, chunk.rows, chunk.targets, chunk.largest, chunk.sums, chunk.predicted, stream);
  reduce(chunk.sums, comm::ReduceOp::kSum, "cross_entropy.sum_exp");
  reduce(chunk.predicted, comm::ReduceOp::kSum, "cross_entropy.predicted");
  losses_of_sums(chunk.sums, chunk.predicted, chunk.losses, stream);
}

template <class E>
void DeviceHead<E>::forward(DeviceActivations<E>& buffers) const {
  const std::int64_t rows = buffers.extents().batch.rows();
  for (std::int64_t row = 0; row < rows; row += buffers.extents().logits_rows) {
    const Chunk chunk = chunk_at(buffers, row);
    compute_logits(chunk);
    if (collectives.world_size() == 1) {
      cross_entropy_forward<E>(chunk.logits, chunk.rows, chunk.targets, chunk.losses, stream);
    } else {
      reduce_statistics(chunk);
    }
  }
}

template <class E>
void DeviceHead<E>::forward_backward(DeviceActivations<E>& buffers, double scale, GradientMode mode) const {
  const std::int64_t rows = buffers.extents().batch.rows();
  // The mean over rows and the caller's scale enter here, as the factor of both products.
  const auto factor = static_cast<float>(scale / static_cast<double>(rows));
  for (std::int64_t row = 0; row < rows; row += buffers.extents().logits_rows) {
    const Chunk chunk = chunk_at(buffers, row);
    compute_logits(chunk);
    if (collectives.world_size() == 1) {
      cross_entropy_forward_backward<E>(chunk.logits, chunk.rows, chunk.targets, 1.0F, chunk.losses, stream);
    } else {
      reduce_statistics(chunk);
      logits_to_gradient<E>(chunk.logits, chunk.rows, chunk.targets, chunk.largest, chunk.sums, 1.0F, stream);
    }
    compute_part(chunk.grad_normalized, chunk.message, [&](auto part) {
      products.template backward_input<E>(chunk.product, chunk.logits, wte, factor, part);
    });
    // The sum over ranks goes on while the last chunk's gradient of the embedding is computed.
    if (row + chunk.product.rows == rows) {
      collectives.begin_sum(buffers.backward.grad_normalized, buffers.message,
                            {sim::TrafficClass::kTpBackward, "lm_head.backward", -1});
    }
    products.backward_weight<E>(chunk.product, chunk.normalized, chunk.logits, factor,
                                row == 0 ? mode : GradientMode::kAdd, wte_gradient, {});
  }
}

template struct DeviceHead<float>;
template struct DeviceHead<Bf16>;

}  // namespace droptest::models
