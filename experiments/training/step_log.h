// SPDX-License-Identifier: Apache-2.0
// The lines of a run's metrics, and the measurements of time and memory in them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/metered_communicator.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/rank_clock.h"
#include "experiments/training/rank_usage.h"
#include "experiments/training/step_profile.h"
#include "experiments/training/trainer_part.h"
#include "experiments/training/training_history.h"
#include "experiments/training/training_hooks.h"
#include "experiments/training/training_model.h"
#include "experiments/training/training_outcome.h"
#include "experiments/training/workers.h"

namespace droptest::experiments {

/// Measures time and memory, and writes the lines.
/// Owner: one rank's trainer. Ranks: all of the group, after the same steps.
class StepLog : public TrainerPart {
 public:
  /// The objects that the log measures, all borrowed.
  struct Measured {
    comm::Communicator& group;
    comm::MeteredCommunicator& metered;  ///< the group; it measures the time that the rank spends in its calls
    comm::LossyCommunicator& network;
    StepProfile& profile;
    RankClock& clock;
    TrainingModel& model;
    const std::optional<Workers>& workers;
    RankUsageMeter& usage;
  };

  /// `history` adds the virtual time of earlier layouts. `put_totals` sets the members of a line that count over the
  /// whole run. `outcome` gets memory, virtual time and the alert that ends the run.
  StepLog(const RunConfig& config, const Measured& measured, TrainingHistory& history, const TrainingHooks& hooks,
          std::function<void(MetricsLine&)> put_totals, TrainingOutcome& outcome);

  /// The clock of the run starts.
  void begin() { start_ = Clock::now(); }
  /// Seconds of the run, including those before a resumption.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void set_seconds(double seconds);
  /// The training losses of the last lines that have one, at most ten.
  std::vector<double>& last_losses() { return last_losses_; }

  /// Notes the memory in use, and writes the line if the config or a part asks for one.
  void after_update(FinishedStep& finished) override;
  /// The outcome gets the memory of the process in use now, by kind.
  void note_memory(std::uint64_t step);
  /// The outcome gets the peak of the memory in use on the rank's GPU.
  void note_device_memory(std::uint64_t step);
  /// Completes the line and gives it to the run's records; then all ranks follow the alerts that rank 0 has found in
  /// it. `is_last`: the run ends anyway, so that no alert ends it.
  void write(MetricsLine& line, bool is_last);
  /// Whether an alert has asked for a checkpoint since the last call.
  bool take_checkpoint_request();

  /// The virtual time of the run so far; absent without a time model.
  std::optional<comm::VirtualTime> collect_time();

 private:
  using Clock = std::chrono::steady_clock;
  void follow_alerts(bool is_last);

  const RunConfig& config_;
  const Measured measured_;
  TrainingHistory& history_;
  const TrainingHooks& hooks_;
  std::function<void(MetricsLine&)> put_totals_;
  TrainingOutcome& outcome_;
  Clock::time_point start_;
  std::vector<double> last_losses_;
  bool is_checkpoint_asked_ = false;
};

}  // namespace droptest::experiments
