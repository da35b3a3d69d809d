// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/linear_head.h"

#include <algorithm>

#include "models/gpt2/gpt2_messages.h"
#include "models/gpt2/layer_boundary.h"
#include "models/kernels/narrow_floats.h"

namespace droptest::models {
namespace {

/// Reads a number of any floating-point type.
std::vector<double> to_doubles(comm::ConstTensor tensor) {
  if (tensor.type == comm::ElementType::kFloat64) {
    const std::span<const double> values = tensor.as<double>();
    return {values.begin(), values.end()};
  }
  std::vector<float> floats(tensor.count_elems());
  const Team alone(1);
  if (tensor.type == comm::ElementType::kFloat32) {
    std::copy_n(tensor.as<float>().begin(), floats.size(), floats.begin());
  } else if (tensor.type == comm::ElementType::kBfloat16) {
    to_floats(tensor.as<Bf16>(), floats, alone);
  } else {
    to_floats(tensor.as<Fp16>(), floats, alone);
  }
  return {floats.begin(), floats.end()};
}

}  // namespace

/// A chunk of the rows: the arguments of its GEMMs and of its cross-entropy.
struct LinearHead::Chunk {
  ProductShape product;
  LogitBlock block;
  comm::Tensor normalized;
  comm::Tensor grad_normalized;  ///< empty in evaluation
  comm::Tensor message;          ///< empty in evaluation, and if messages have the activations' type
};

LinearHead::Chunk LinearHead::chunk_at(StageBuffers& b, std::int64_t first_row) {
  const StageExtents& x = b.extents;
  const std::int64_t count = std::min(b.chunks.rows, x.batch.rows() - first_row);
  const auto rows_of = [&](const comm::Tensor& tensor) {
    return tensor.bytes.empty() ? comm::Tensor() : elements(tensor, first_row * x.width, count * x.width);
  };
  Chunk chunk;
  chunk.product = {count, x.width, x.outputs.count, WeightLayout::kOutputsByInputs, b.chunks.stride};
  chunk.block = {elements(b.logits, 0, count * b.chunks.stride),
                 count,
                 b.chunks.stride,
                 x.outputs,
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

Weight LinearHead::used_rows(const StageExtents& x) const {
  const std::int64_t count = x.outputs.count * x.width;
  return {elements(weights_.value, 0, count), elements(weights_.operand, 0, count),
          elements(weights_.gradient, 0, count)};
}

void LinearHead::reduce_statistics(const LogitBlock& block) const {
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

void LinearHead::compute_logits(StageBuffers& b, const Chunk& chunk, const Weight& weights) const {
  ops_.linear_forward(chunk.product, ops_.operand(chunk.normalized, 1, b.rounded_input), weights, nullptr,
                      chunk.block.logits);
}

void LinearHead::compute_losses(StageBuffers& b, const Chunk& chunk, const Weight& weights, Logits logits) const {
  compute_logits(b, chunk, weights);
  if (ops_.world_size() == 1 && ops_.form().fuses_cross_entropy()) return ops_.cross_entropy(chunk.block, logits);
  reduce_statistics(chunk.block);
  if (logits == Logits::kToGradient) ops_.logits_to_gradient(chunk.block);
}

void LinearHead::forward(StageBuffers& b) const {
  const Weight weights = used_rows(b.extents);
  for (std::int64_t row = 0; row < b.extents.batch.rows(); row += b.chunks.rows) {
    compute_losses(b, chunk_at(b, row), weights, Logits::kKeep);
  }
}

void LinearHead::forward_backward(StageBuffers& b, double factor, GradientMode mode) const {
  const std::int64_t rows = b.extents.batch.rows();
  const Weight weights = used_rows(b.extents);
  if (rows == 0 && mode == GradientMode::kSet) ops_.zero(weights.gradient);
  // The factor is applied in both GEMMs, or to the gradient before them.
  const bool in_front = ops_.form().rounds_logit_gradients_to_fp16();
  for (std::int64_t row = 0; row < rows; row += b.chunks.rows) {
    Chunk chunk = chunk_at(b, row);
    if (in_front) chunk.block.factor = static_cast<float>(factor);
    compute_losses(b, chunk, weights, Logits::kToGradient);
    if (!class_weights_.empty()) ops_.weigh_rows(chunk.block, class_weights_);
    const Operand gradient = ops_.operand(chunk.block.logits, in_front ? 1 : factor, b.rounded_gradients[0]);
    ops_.linear_backward_input(chunk.product, gradient, weights, part_of(chunk.grad_normalized, chunk.message));
    // The sum over ranks overlaps with the last chunk's gradient of the embedding.
    if (row + chunk.product.rows == rows) {
      LayerBoundary(ops_).begin_gradient_sum(b.grad_normalized, b, Gpt2Messages::head_input_gradient(),
                                             b.lost_head_input);
    }
    ops_.linear_backward_weight(chunk.product, ops_.operand(chunk.normalized, 1, b.rounded_input), gradient,
                                row == 0 ? mode : GradientMode::kAdd, weights, nullptr);
  }
}

void LinearHead::for_target_logits(StageBuffers& b, std::span<const std::int32_t> targets,
                                   const LogitVisitor& visit) const {
  const Weight weights = used_rows(b.extents);
  const auto outputs = static_cast<std::size_t>(b.extents.outputs.count);
  for (std::int64_t row = 0; row < b.extents.batch.rows(); row += b.chunks.rows) {
    const Chunk chunk = chunk_at(b, row);
    if (targets.empty()) {
      compute_logits(b, chunk, weights);
      continue;
    }
    const auto of_chunk = targets.subspan(static_cast<std::size_t>(row), static_cast<std::size_t>(chunk.block.rows));
    if (count_targets(of_chunk) == 0) continue;
    compute_logits(b, chunk, weights);
    std::vector<std::byte> copy(chunk.block.logits.bytes.size());
    ops_.copy_to_host(chunk.block.logits, copy);
    ops_.synchronize();
    const std::vector<double> values = to_doubles(comm::ConstTensor(chunk.block.logits.type, copy));
    for (std::size_t i = 0; i < of_chunk.size(); ++i) {
      if (of_chunk[i] == kIgnoredTarget) continue;
      visit(row + static_cast<std::int64_t>(i),
            std::span(values).subspan(i * static_cast<std::size_t>(b.chunks.stride), outputs));
    }
  }
}

}  // namespace droptest::models
