// SPDX-License-Identifier: Apache-2.0
// One training step of a model: passes over micro-batches, then the update, which may be skipped.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "models/gpt2/gpt2.h"
#include "models/loss_scaler.h"

namespace droptest::models {

struct StepResult {
  double loss = 0;  ///< mean over all targets and ranks, in nats per target; equal on every rank
  /// The norm of the whole model before clipping. With Norm::kAgreed it is equal on all ranks, except ranks with
  /// Flags::kMissed.
  double gradient_norm = 0;
  bool updated = false;   ///< false: loss or norm is not finite; weights and moments did not change
  double loss_scale = 1;  ///< factor of the losses in the backward pass; loss and norm are without it
};

/// Runs the rank's program: accumulates gradients over micro-batches, computes their norm, clips, and updates or skips
/// the update. Owner: one rank. Ranks: all of the model's group make the same calls. Blocking: the host waits for a
/// device once in a step.
class TrainingStep {
 public:
  /// The model is borrowed. Gradients with a norm beyond max_gradient_norm are clipped; 0: no clipping.
  TrainingStep(Gpt2& model, double max_gradient_norm, UpdateRule::Norm norm = UpdateRule::Norm::kAgreed,
               const LossScaleConfig& loss_scale = {})
      : model_(model), max_gradient_norm_(max_gradient_norm), norm_(norm), scaler_(loss_scale) {}

  /// One step. All targets that are not ignored have equal weight, or the weight of their class, whichever micro-batch
  /// and rank has them. Call Gpt2::spread_embedding() before the next step or evaluation. Shapes: at least one
  /// micro-batch; in a pipeline, as many as its program has, all with the same batch size and length.
  StepResult take(std::span<const MicroBatch> micro_batches, double learning_rate,
                  UpdateRule::Flags flags = UpdateRule::Flags::kReliable);
  /// For a rank that takes no part in the step: follows the loss scale of the others.
  void follow(const StepResult& step) { take_scale(step.updated); }
  /// The loss scaler for the next step.
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
  PipelineProgram alone_;  ///< program of a model without a pipeline, for the last number of micro-batches
};

}  // namespace droptest::models
