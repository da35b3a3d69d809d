// SPDX-License-Identifier: Apache-2.0
// Runs the runs of a sweep, several at once, each in a process of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/records/run_records.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

struct SweepOptions {
  std::string out;  ///< root folder of results
  int jobs = 1;     ///< runs at once
  /// Whether each run gets cores of its own, where there are enough for all, and the last runs those that fall free.
  enum class Pin : std::uint8_t { kNone, kCores } pin = Pin::kCores;
  /// Command that runs the run of a folder's spec.json; folder and sweep point are appended.
  std::vector<std::string> worker_command;
};

/// Where one run of the sweep stands.
struct SweepRun {
  enum class State : std::uint8_t {
    kWaiting,
    kRunning,
    kFoundFinished,  ///< had a result before the sweep began
    kFinished,       ///< has a result: completed or diverged
    kFailed,
  } state = State::kWaiting;
  std::uint64_t step = 0;            ///< finished, as far as logged
  std::uint64_t steps = 0;           ///< wanted
  std::optional<double> train_loss;  ///< last logged
  std::string error;                 ///< kFailed
  nlohmann::json summary;            ///< kFoundFinished, kFinished, kFailed
  std::size_t same_as = 0;           ///< index of the run whose result this one shares; its own else
};

/// The runs in the plan's order, and how long the sweep has been running.
struct SweepProgress {
  std::vector<SweepRun> runs;
  double seconds = 0;

  /// Runs that ended, with a result or without.
  std::size_t ended() const;
  std::size_t failed() const;
  /// Optimizer steps per second of this sweep, over all runs; 0 before the first.
  double steps_per_second() const;
  /// At this rate, for the steps not yet done; absent before the first step.
  std::optional<double> seconds_left() const;
};

/// Runs what has no result yet. A run that fails is recorded, and the others go on. `on_progress` is called some times
/// a second, from this thread, and once at the end. Once `stop_requested` returns true, running runs are stopped and
/// forgotten, and the progress so far is returned. Also writes sweep.json, first.
/// Throws: ConfigError where a record cannot be written.
SweepProgress run_sweep(const SweepPlan& plan, const SweepOptions& options,
                        const std::function<void(const SweepProgress&)>& on_progress,
                        const std::function<bool()>& stop_requested);

/// The same without sweep.json: runs that something else lists.
SweepProgress run_planned(const SweepPlan& plan, const SweepOptions& options,
                          const std::function<void(const SweepProgress&)>& on_progress,
                          const std::function<bool()>& stop_requested);

}  // namespace droptest::experiments
