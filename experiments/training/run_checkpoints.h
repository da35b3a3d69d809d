// SPDX-License-Identifier: Apache-2.0
// The checkpoints of one rank's training, and the state that it leaves if another rank dies.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "experiments/checkpoint/checkpointer.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/rescue_state.h"
#include "experiments/training/step_profile.h"
#include "experiments/training/trainer_part.h"
#include "experiments/training/training_history.h"
#include "experiments/training/training_hooks.h"
#include "experiments/training/training_outcome.h"

namespace droptest::experiments {

/// Takes checkpoints after steps. The object of a run without checkpoints does nothing.
/// Owner: one rank's trainer. Ranks: all of the group, after the same steps.
class RunCheckpoints : public TrainerPart {
 public:
  /// `state`: the state of the rank now. `settle`: waits for all messages under way; called before `state`. `is_asked`:
  /// whether a checkpoint has been asked for since the last call. `outcome` gets the step after which the run stops.
  RunCheckpoints(const RunConfig& config, comm::Communicator& group, StepProfile& profile,
                 const TrainingHistory& history, const TrainingHooks& hooks, std::function<TrainingState()> state,
                 std::function<void()> settle, std::function<bool()> is_asked, TrainingOutcome& outcome);

  /// Whether the run takes checkpoints.
  bool are_taken() const { return checkpointer_.has_value(); }
  /// Checkpointer::restore(); absent without checkpoints.
  std::optional<Checkpointer::Restored> restore();
  /// Takes a checkpoint if one is due or asked for, or if the run stops: a signal has come, or other replicas go on.
  void after_update(FinishedStep& finished) override;
  /// Waits until the last checkpoint is complete. The outcome gets the totals of all checkpoints.
  void finish();
  /// The checkpoints that failed so far, including the states that ranks of earlier attempts could not leave.
  std::uint64_t failed() const;

  RescueState& rescue() { return rescue_; }
  /// Another rank has died: leaves the state after the last update, if the run's ranks do.
  void leave_state(const std::string& why);

 private:
  CheckpointTotals totals() const;

  const RunConfig& config_;
  comm::Communicator& group_;
  StepProfile& profile_;
  const TrainingHistory& history_;
  const TrainingHooks& hooks_;
  std::function<TrainingState()> state_;
  std::function<void()> settle_;
  std::function<bool()> is_asked_;
  TrainingOutcome& outcome_;
  std::optional<Checkpointer> checkpointer_;
  RescueState rescue_;
};

}  // namespace droptest::experiments
