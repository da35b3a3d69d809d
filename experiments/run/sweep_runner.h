// SPDX-License-Identifier: Apache-2.0
// Runs the runs of a sweep, several at once, each in a process of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/files/file_lock.h"
#include "experiments/records/run_records.h"
#include "experiments/spec/file_hashes.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

struct SweepOptions {
  std::string out;  ///< root folder of results
  int jobs = 1;     ///< most runs at a time
  /// The hashes of the files that the plan's specs name: a run fails if its files have changed since then. Null: no
  /// check.
  FileHashes* files = nullptr;
  /// Whether each run gets cores of its own. It does if there are enough for all; the last runs get cores that are
  /// free.
  enum class Pin : std::uint8_t { kNone, kCores } pin = Pin::kCores;
  /// Command that runs the run of a folder's spec.json; folder, sweep point and the like are appended.
  std::vector<std::string> worker_command;
  IfBusy if_busy = IfBusy::kSkip;        ///< if another process is at work on a run
  Again again = Again::kNo;              ///< whether finished runs that lack a record of /record are run again
  Stopped stopped = Stopped::kRunAgain;  ///< runs that an alert stops, in this sweep or before
  /// Hears of summaries that cannot be read; their runs are run again.
  SayUnread say_unread = [](const std::string&) {};
};

/// The progress of one run of the sweep.
struct SweepRun {
  enum class State : std::uint8_t {
    kWaiting,
    kRunning,
    kFoundFinished,  ///< had a result before the sweep began
    kFinished,       ///< has a result: completed or diverged
    kFailed,
    kBusy,  ///< another process is at work on it
  } state = State::kWaiting;
  std::uint64_t step = 0;            ///< the last step that was logged
  std::uint64_t steps = 0;           ///< the last step of the run
  std::optional<double> train_loss;  ///< the last loss that was logged
  std::string error;                 ///< kFailed: its reason
  std::string holder;                ///< kBusy: the process at work on it
  nlohmann::json summary;            ///< kFoundFinished, kFinished, kFailed: the summary
  std::size_t same_as = 0;           ///< index of the first run with the same id, which may be this one
};

/// The runs in the plan's order, and how long the sweep has been running.
struct SweepProgress {
  std::vector<SweepRun> runs;
  double seconds = 0;
  std::string problem;  ///< the record that could not be written; no run was started since then; empty: none

  /// Runs that ended, with a result or without.
  std::size_t ended() const;
  std::size_t failed() const;
  std::size_t busy() const;
  /// Optimizer steps per second of this sweep, over all runs; 0 before the first.
  double steps_per_second() const;
  /// The time for the steps not yet done, at the rate so far; absent before the first step.
  std::optional<double> seconds_left() const;
};

/// Executes the runs that have no result. A run that fails is recorded, and the others go on. A run that another
/// process works on stays kBusy if it has not ended when all others have; with IfBusy::kWait the sweep waits for it.
/// `on_progress` is called some times a second, from this thread, and once at the end. Once `stop_requested` returns
/// true, running runs are stopped and forgotten, and the progress so far is returned. Writes sweep.json before the
/// first run, and holds it: sweeps of the same runs share it; a sweep of other runs with the same name is refused. If
/// a run's record cannot be written, the sweep ends once the running runs have ended (SweepProgress::problem).
/// Throws: ConfigError if sweep.json cannot be written; BusyError, before anything runs, if sweep.json lists other
/// runs of a sweep that goes on, and with kFail if another process is at work on any run.
SweepProgress run_sweep(const SweepPlan& plan, const SweepOptions& options,
                        const std::function<void(const SweepProgress&)>& on_progress,
                        const std::function<bool()>& stop_requested);

/// Only writes sweep.json, for runs that other processes are to run. Throws: ConfigError; BusyError as run_sweep().
void record_sweep(const SweepPlan& plan, const std::string& out);

/// Executes the runs as run_sweep(), but without sweep.json: another record lists the runs.
SweepProgress run_planned(const SweepPlan& plan, const SweepOptions& options,
                          const std::function<void(const SweepProgress&)>& on_progress,
                          const std::function<bool()>& stop_requested);

}  // namespace droptest::experiments
