// SPDX-License-Identifier: Apache-2.0
// One training step of a model: passes over micro-batches, then an update or none.
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/gpt2.h"

namespace droptest::models {

/// The input of a forward and a backward pass.
struct MicroBatch {
  std::span<const std::int32_t> tokens, targets;
  BatchShape shape;
};

struct StepResult {
  double loss = 0;           ///< mean over all targets and ranks, in nats per token; the same on every rank
  double gradient_norm = 0;  ///< of the whole model before clipping; with Norm::kAgreed the same on every rank
  bool updated = false;      ///< false: loss or norm is not finite, and weights and moments are as before the step
};

/// Accumulates gradients over micro-batches, takes their norm, clips, and updates, or skips the update. The caller
/// gives it batches and learning rates, and reads results. Owner: one rank. Ranks: all of the model's group make the
/// same calls. The host waits for a device once in a step.
class TrainingStep {
 public:
  /// The model is borrowed. max_gradient_norm: gradients beyond it are clipped; 0: none are.
  TrainingStep(Gpt2& model, double max_gradient_norm, UpdateRule::Norm norm = UpdateRule::Norm::kAgreed)
      : model_(model), max_gradient_norm_(max_gradient_norm), norm_(norm) {}

  /// Shapes: at least one micro-batch. Each target that is not ignored counts alike, whichever micro-batch and rank has
  /// it.
  StepResult take(std::span<const MicroBatch> micro_batches, double learning_rate);

  void visit_state(StateVisitor& visitor) { model_.visit_state(visitor); }

 private:
  Gpt2& model_;
  double max_gradient_norm_;
  UpdateRule::Norm norm_;
};

}  // namespace droptest::models
