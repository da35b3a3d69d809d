// SPDX-License-Identifier: Apache-2.0
// Dropout of a stage. A mask is drawn again in the backward pass and in recomputation.
#include <cstdint>
#include <vector>

#include "models/gpt2/stage.h"
#include "sim/error.h"

namespace droptest::models {

DropoutMask Stage::mask_of(sim::Purpose purpose, double probability, int place, const StageBuffers& b) const {
  const BatchShape& batch = b.extents.batch;
  DropoutMask mask;
  mask.probability = is_training_ ? probability : 0;
  mask.seed = config_.dropout.seed;
  mask.purpose = purpose;
  mask.step = batch.step;
  mask.place = place;
  mask.first_sample = batch.first_sample;
  mask.length = batch.length;
  const std::vector<PositionRange>& ranges = b.sequences.positions;
  DROPTEST_CHECK(probability == 0 || ranges.size() <= 2, "dropout of tokens of more than two places in a sequence");
  if (!ranges.empty()) mask.first_position = ranges.front().begin;
  if (ranges.size() == 2) {
    mask.tokens_before_gap = ranges[0].count;
    mask.gap = ranges[1].begin - ranges[0].begin - ranges[0].count;
  }
  mask.first_row = b.extents.cut().first_row();
  return mask;
}

DropoutMask Stage::residual_dropout(int layer, SublayerKind kind, const StageBuffers& b) const {
  const int place = 2 * layer + (kind == SublayerKind::kMlp ? 1 : 0);
  return mask_of(sim::Purpose::kResidualDropout, config_.dropout.residual, place, b);
}

DropoutMask Stage::attention_dropout(int layer, const StageBuffers& b) const {
  DropoutMask mask = mask_of(sim::Purpose::kAttentionDropout, config_.dropout.attention, layer, b);
  mask.first_head = b.extents.first_head;
  mask.first_position = b.extents.batch.first_position;  // keys may be on other ranks
  return mask;
}

DropoutMask Stage::embedding_dropout(const StageBuffers& b) const {
  return mask_of(sim::Purpose::kEmbeddingDropout, config_.dropout.embedding, 0, b);
}

comm::Tensor Stage::branch_gradient(int layer, SublayerKind kind, StageBuffers& b) {
  const comm::Tensor& of_stream =
      kind == SublayerKind::kMlp ? b.mlp[index(layer)].grad_output : b.attention[index(layer)].grad_output;
  if (!drops_residuals()) return of_stream;
  ops_.drop_elements(of_stream, residual_dropout(layer, kind, b), own_rows_, config_.width, b.grad_branch);
  return b.grad_branch;
}

comm::Tensor Stage::gathered_branch_gradient(int layer, SublayerKind kind, StageBuffers& b, GradientMode mode) {
  const bool is_mlp = kind == SublayerKind::kMlp;
  const comm::Tensor gradient = branch_gradient(layer, kind, b);
  if (drops_residuals()) {
    NormBackward sum;
    sum.rows = own_rows_;
    sum.width = config_.width;
    sum.grad_residual = gradient;
    sum.grad_branch_bias = weight((is_mlp ? mlp(layer) : attention(layer)).second.bias()).gradient;
    sum.mode = mode;
    ops_.residual_backward(sum);
  }
  return boundary_.gather(gradient,
                          is_mlp ? b.mlp[index(layer)].grad_gathered : b.attention[index(layer)].grad_gathered, b,
                          is_mlp ? messages_.mlp_output_gradient(layer) : messages_.attention_output_gradient(layer));
}

comm::Tensor Stage::branch_gradient_of_weights(int layer, SublayerKind kind, StageBuffers& b) {
  if (!b.extents.cuts_tokens()) return branch_gradient(layer, kind, b);
  return kind == SublayerKind::kMlp ? b.mlp[index(layer)].grad_gathered : b.attention[index(layer)].grad_gathered;
}

}  // namespace droptest::models
