// SPDX-License-Identifier: Apache-2.0
// Logits by the tied embedding, cross-entropy, and the gradients of both.
#pragma once

#include <cstdint>

#include "models/gpt2/head.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// Works through the rows in chunks, so that few logits are in memory, however long the batch is. The loss is
/// log(sum of exp) - target's logit, both relative to the row's largest logit. Source: Megatron-LM's
/// vocabulary-parallel cross-entropy; its three reductions a chunk are small and travel as `control`. A rank that has
/// the whole vocabulary makes none where its operations fuse the cross-entropy.
class LmHead final : public Head {
 public:
  /// `wte`: [at least the rank's tokens, width].
  LmHead(Ops& ops, const Weight& wte) : ops_(ops), wte_(wte) {}

  void forward(StageBuffers& buffers) const override;
  void forward_backward(StageBuffers& buffers, double factor, GradientMode mode) const override;

 private:
  struct Chunk;
  static Chunk chunk_at(StageBuffers& buffers, std::int64_t first_row);
  void compute_losses(StageBuffers& buffers, const Chunk& chunk, const Weight& wte, Logits logits) const;
  void reduce_statistics(const LogitBlock& block) const;
  /// The rows of the embedding that stand for tokens.
  Weight used_rows(const StageExtents& extents) const;

  Ops& ops_;
  Weight wte_;
};

}  // namespace droptest::models
