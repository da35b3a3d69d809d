// SPDX-License-Identifier: Apache-2.0
// One training step of a model: passes over micro-batches, then an update or none.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "models/gpt2/gpt2.h"
#include "models/loss_scaler.h"

namespace droptest::models {

struct StepResult {
  double loss = 0;           ///< mean over all targets and ranks, in nats per token; the same on every rank
  double gradient_norm = 0;  ///< of the whole model before clipping; with Norm::kAgreed the same on every rank
  bool updated = false;      ///< false: loss or norm is not finite, and weights and moments are as before the step
  double loss_scale = 1;     ///< that losses were multiplied by; norm and loss are without it
};

/// Takes the steps of the rank's program: accumulates gradients over micro-batches, takes their norm, clips, and
/// updates, or skips the update. The caller gives it batches and learning rates, and reads results. Owner: one rank.
/// Ranks: all of the model's group make the same calls. The host waits for a device once in a step.
class TrainingStep {
 public:
  /// The model is borrowed. max_gradient_norm: gradients beyond it are clipped; 0: none are.
  TrainingStep(Gpt2& model, double max_gradient_norm, UpdateRule::Norm norm = UpdateRule::Norm::kAgreed,
               const LossScaleConfig& loss_scale = {})
      : model_(model), max_gradient_norm_(max_gradient_norm), norm_(norm), scaler_(loss_scale) {}

  /// Shapes: at least one micro-batch. Each target that is not ignored counts alike, whichever micro-batch and rank has
  /// it.
  /// A pipeline takes as many as its program has, of one batch size and length. Gpt2::spread_embedding() follows,
  /// before the next step or evaluation.
  StepResult take(std::span<const MicroBatch> micro_batches, double learning_rate,
                  UpdateRule::Flags flags = UpdateRule::Flags::kReliable);
  /// A rank without a part in the step: it follows the loss scale of the others.
  void follow(const StepResult& step) { take_scale(step.updated); }
  /// Of the next step.
  const LossScaler& scaler() const { return scaler_; }
  /// Calls `computed(action)` after each computation of a stage, before its result is sent.
  void set_computed(std::function<void(const Action&)> computed) { computed_ = std::move(computed); }

  void visit_state(StateVisitor& visitor) {
    model_.visit_state(visitor);
    scaler_.visit_state(visitor);
  }

 private:
  const std::vector<PipelineStep>& steps_for(int micro_batches);
  void take_scale(bool updated) { scaler_.take(updated ? LossScaler::Step::kFinite : LossScaler::Step::kOverflow); }

  Gpt2& model_;
  double max_gradient_norm_;
  UpdateRule::Norm norm_;
  LossScaler scaler_;
  std::function<void(const Action&)> computed_;
  PipelineProgram alone_;  ///< of a model without a pipeline, for the last number of micro-batches
};

}  // namespace droptest::models
