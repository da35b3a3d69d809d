// SPDX-License-Identifier: Apache-2.0
// Logits of a linear layer without bias, cross-entropy, and the gradients of both.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/gpt2/head.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// The LM head, whose outputs are tokens and whose weights the token embedding's; or a classification head. Ranks have
/// parts of the outputs. Works through the rows in chunks, so that few logits are in memory, however long the batch is.
/// The loss is log(sum of exp) - target's logit, both relative to the row's largest logit. Source: Megatron-LM's
/// vocabulary-parallel cross-entropy; its three reductions a chunk are small and travel as `control`. A rank that has
/// all outputs makes none where its operations fuse the cross-entropy.
class LinearHead final : public Head {
 public:
  /// `weights`: [at least the rank's outputs, width]. `class_weights`: of each output in the training loss, as
  /// PyTorch's CrossEntropyLoss has them; empty: 1.
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
  /// The rows of the weights that stand for outputs.
  Weight used_rows(const StageExtents& extents) const;

  Ops& ops_;
  Weight weights_;
  std::vector<double> class_weights_;
};

}  // namespace droptest::models
