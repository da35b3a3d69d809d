// SPDX-License-Identifier: Apache-2.0
// A linear layer without bias, cross-entropy, and the gradients of both.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/gpt2/head.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// The LM head, which has tokens as outputs and shares the weights of the token embedding, or a classification head.
/// Each rank has a part of the outputs. The rows are processed in chunks, so that only few logits are in memory,
/// however long the batch is. The loss is log(sum of exp) - the target's logit, both relative to the row's largest
/// logit. Source: Megatron-LM's vocabulary-parallel cross-entropy. Its three reductions for each chunk are small and
/// have class control; a rank that has all outputs makes none if its operations fuse the cross-entropy.
class LinearHead final : public Head {
 public:
  /// `weights` are [at least the rank's outputs, width]. `class_weights` has a weight of each output in the training
  /// loss, as in PyTorch's CrossEntropyLoss; empty: all 1.
  LinearHead(Ops& ops, const Weight& weights, std::vector<double> class_weights = {})
      : ops_(ops), weights_(weights), class_weights_(std::move(class_weights)) {}

  void forward(StageBuffers& buffers) const override;
  void forward_backward(StageBuffers& buffers, double factor, GradientMode mode) const override;
  void for_target_logits(StageBuffers& buffers, std::span<const std::int32_t> targets,
                         const LogitVisitor& visit) const override;

 private:
  struct Chunk;
  static Chunk chunk_at(StageBuffers& buffers, std::int64_t first_row);
  void compute_logits(StageBuffers& buffers, const Chunk& chunk, const Weight& weights) const;
  void compute_losses(StageBuffers& buffers, const Chunk& chunk, const Weight& weights, Logits logits) const;
  void reduce_statistics(const LogitBlock& block) const;
  /// The rows of the weights that belong to outputs, without padding.
  Weight used_rows(const StageExtents& extents) const;

  Ops& ops_;
  Weight weights_;
  std::vector<double> class_weights_;
};

}  // namespace droptest::models
