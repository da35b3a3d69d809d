// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/run_checkpoints.h"

#include <utility>

#include "comm/rank_agreement.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

bool takes_checkpoints(const RunConfig& config, const TrainingHooks& hooks) {
  return config.checkpoint && hooks.checkpoints;
}

/// Ranks with shards of the state would each leave a part of it, and ranks that miss a flag differ.
RescueState::Leaves leaves_states(const RunConfig& config, const TrainingHooks& hooks) {
  const bool leaves = config.elastic && takes_checkpoints(config, hooks) && config.sharding.zero == 0 &&
                      !config.failures && config.training.flag_loss_rate == 0;
  return leaves ? RescueState::Leaves::kYes : RescueState::Leaves::kNo;
}

}  // namespace

RunCheckpoints::RunCheckpoints(const RunConfig& config, comm::Communicator& group, StepProfile& profile,
                               const TrainingHistory& history, const TrainingHooks& hooks,
                               std::function<TrainingState()> state, std::function<void()> settle,
                               std::function<bool()> is_asked, TrainingOutcome& outcome)
    : config_(config),
      group_(group),
      profile_(profile),
      history_(history),
      hooks_(hooks),
      state_(std::move(state)),
      settle_(std::move(settle)),
      is_asked_(std::move(is_asked)),
      outcome_(outcome),
      rescue_(leaves_states(config, hooks)) {
  if (!takes_checkpoints(config, hooks)) return;
  checkpointer_.emplace(*hooks.checkpoints, config, history.membership(), group, hooks.on_checkpoint_error,
                        hooks.is_at_work);
}

std::optional<Checkpointer::Restored> RunCheckpoints::restore() {
  return checkpointer_ ? checkpointer_->restore(state_()) : std::nullopt;
}

void RunCheckpoints::after_update(FinishedStep& finished) {
  const bool is_asked = is_asked_();
  if (!checkpointer_ || outcome_.diverged_step) return;
  const StepProfile::Scope scope(profile_, TrainerPhase::kCheckpoint);
  bool stops = false;
  if (config_.checkpoint->on_signal == CheckpointConfig::OnSignal::kTake) {
    const bool requested = group_.rank() == 0 && hooks_.stop_requested();
    stops = number_of_root(requested ? 1 : 0, group_, "request to stop") != 0;
  }
  const bool goes_on = !finished.is_last && outcome_.alert.empty();
  const auto change = goes_on ? hooks_.replicas_change_after(finished.step) : std::nullopt;
  const std::uint64_t completed = checkpointer_->totals().completed;
  settle_();
  using enum Checkpointer::Because;
  checkpointer_->after_step(finished.step, state_(), change.value_or(stops || is_asked ? kRequested : kInterval));
  const bool changes = change && checkpointer_->totals().completed > completed;
  if ((!stops && !changes) || finished.is_last) return;
  outcome_.stopped_after = finished.step;
  outcome_.replicas_change = !stops;
}

void RunCheckpoints::finish() {
  if (!checkpointer_) return;
  checkpointer_->finish();
  outcome_.checkpoints = totals();
}

std::uint64_t RunCheckpoints::failed() const { return totals().failed; }

CheckpointTotals RunCheckpoints::totals() const {
  CheckpointTotals totals = checkpointer_->totals();
  totals.failed += hooks_.states_not_left;
  return totals;
}

void RunCheckpoints::leave_state(const std::string& why) {
  const std::optional<std::uint64_t> step = rescue_.step();
  if (!step) return;
  group_.abort(why);  // so that no other rank waits for this one
  try {
    rescue_.leave(*checkpointer_, state_(), history_);
  } catch (const ConfigError& error) {
    hooks_.on_checkpoint_error(*step,
                               "rank " + std::to_string(group_.rank()) + " cannot leave its state: " + error.what());
  }
}

}  // namespace droptest::experiments
