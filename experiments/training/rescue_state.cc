// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/rescue_state.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "experiments/checkpoint/state_bytes.h"

namespace droptest::experiments {

void RescueState::keep(const MetricsLine& line, const VisitProgress& visit_progress) {
  updated_.reset();
  if (leaves_ == Leaves::kNo) return;
  unrecorded_ = StepResults{line.step,       line.train_loss,    line.gradient_norm, line.learning_rate,
                            line.loss_scale, line.skipped_steps, line.replicas};
  StateSaver saver;
  visit_progress(saver);
  unrecorded_.reset();
  updated_ = Updated{line.step, saver.take()};
}

std::optional<std::uint64_t> RescueState::step() const {
  return updated_ ? std::optional(updated_->step) : std::nullopt;
}

void RescueState::leave(Checkpointer& checkpointer, const TrainingState& state, const TrainingHistory& history) {
  checkpointer.leave(updated_->step, state, std::move(updated_->progress), history.as_counted(updated_->step));
}

std::optional<MetricsLine> RescueState::take_unrecorded() {
  if (!unrecorded_) return std::nullopt;
  const StepResults results = *std::exchange(unrecorded_, std::nullopt);
  MetricsLine line;
  line.step = results.step;
  line.train_loss = results.train_loss;
  line.gradient_norm = results.gradient_norm;
  line.learning_rate = results.learning_rate;
  line.loss_scale = results.loss_scale;
  line.skipped_steps = results.skipped_steps;
  line.replicas = results.replicas;
  return line;
}

}  // namespace droptest::experiments
