// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/lm_head.h"

#include <algorithm>

#include "models/gpt2/gpt2_messages.h"
#include "models/gpt2/layer_boundary.h"

namespace droptest::models {

/// A part of the rows, in terms of GEMMs and of cross-entropy.
struct LmHead::Chunk {
  ProductShape product;
  LogitBlock block;
  comm::Tensor normalized;
  comm::Tensor grad_normalized;  ///< empty in evaluation
  comm::Tensor message;          ///< likewise, and where messages are of the activations' type
};

LmHead::Chunk LmHead::chunk_at(StageBuffers& b, std::int64_t first_row) {
  const StageExtents& x = b.extents;
  const std::int64_t count = std::min(b.chunks.rows, x.batch.rows() - first_row);
  const auto rows_of = [&](const comm::Tensor& tensor) {
    return tensor.bytes.empty() ? comm::Tensor() : elements(tensor, first_row * x.width, count * x.width);
  };
  Chunk chunk;
  chunk.product = {count, x.width, x.vocabulary.count, WeightLayout::kOutputsByInputs, b.chunks.stride};
  chunk.block = {elements(b.logits, 0, count * b.chunks.stride),
                 count,
                 b.chunks.stride,
                 x.vocabulary,
                 b.targets.part(first_row, count),
                 elements(b.largest, 0, count),
                 elements(b.sums, 0, count),
                 elements(b.predicted, 0, count),
                 elements(b.losses, first_row, count)};
  chunk.normalized = rows_of(b.shared_input(b.final_norm));
  chunk.grad_normalized = rows_of(LayerBoundary::whole_sum(b.grad_normalized, b));
  chunk.message = rows_of(b.message);
  return chunk;
}

Weight LmHead::used_rows(const StageExtents& x) const {
  const std::int64_t count = x.vocabulary.count * x.width;
  return {elements(wte_.value, 0, count), elements(wte_.operand, 0, count), elements(wte_.gradient, 0, count)};
}

void LmHead::reduce_statistics(const LogitBlock& block) const {
  const auto reduce = [&](const comm::Tensor& values, comm::ReduceOp op, const comm::Message& about) {
    ops_.begin_all_reduce(values, op, about);
    ops_.join();
  };
  ops_.row_maxima(block);
  reduce(block.largest, comm::ReduceOp::kMax, Gpt2Messages::row_maxima());
  ops_.exponential_sums(block);
  reduce(block.sums, comm::ReduceOp::kSum, Gpt2Messages::exponential_sums());
  reduce(block.predicted, comm::ReduceOp::kSum, Gpt2Messages::predicted_logits());
  ops_.losses_of_sums(block);
}

void LmHead::compute_losses(StageBuffers& b, const Chunk& chunk, const Weight& wte, Logits logits) const {
  ops_.linear_forward(chunk.product, ops_.operand(chunk.normalized, 1, b.rounded_input), wte, nullptr,
                      chunk.block.logits);
  if (ops_.world_size() == 1 && ops_.form().fuses_cross_entropy()) return ops_.cross_entropy(chunk.block, logits);
  reduce_statistics(chunk.block);
  if (logits == Logits::kToGradient) ops_.logits_to_gradient(chunk.block);
}

void LmHead::forward(StageBuffers& b) const {
  const Weight wte = used_rows(b.extents);
  for (std::int64_t row = 0; row < b.extents.batch.rows(); row += b.chunks.rows) {
    compute_losses(b, chunk_at(b, row), wte, Logits::kKeep);
  }
}

void LmHead::forward_backward(StageBuffers& b, double factor, GradientMode mode) const {
  const std::int64_t rows = b.extents.batch.rows();
  const Weight wte = used_rows(b.extents);
  if (rows == 0 && mode == GradientMode::kSet) ops_.zero(wte.gradient);
  // The factor enters both GEMMs.
  for (std::int64_t row = 0; row < rows; row += b.chunks.rows) {
    const Chunk chunk = chunk_at(b, row);
    compute_losses(b, chunk, wte, Logits::kToGradient);
    const Operand gradient = ops_.operand(chunk.block.logits, factor, b.rounded_gradients[0]);
    ops_.linear_backward_input(chunk.product, gradient, wte, part_of(chunk.grad_normalized, chunk.message));
    // The sum over ranks goes on while the last chunk's gradient of the embedding is computed.
    if (row + chunk.product.rows == rows) {
      LayerBoundary(ops_).begin_sum(b.grad_normalized, b, Gpt2Messages::head_input_gradient());
    }
    ops_.linear_backward_weight(chunk.product, ops_.operand(chunk.normalized, 1, b.rounded_input), gradient,
                                row == 0 ? mode : GradientMode::kAdd, wte, nullptr);
  }
}

}  // namespace droptest::models
