// SPDX-License-Identifier: Apache-2.0
// Files for other programs that follow runs while they go on: TensorBoard's and Prometheus'.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "experiments/watch/tensorboard.h"
#include "experiments/watch/watched_runs.h"

namespace CLI {
class App;
}

namespace droptest::cli {

struct WatchOutputOptions {
  bool tensorboard = false;
  std::string open_metrics;  ///< file; empty: none
};

/// Adds --tensorboard and --openmetrics. `options` outlives the parsing.
void add_watch_output_options(CLI::App& command, WatchOutputOptions& options);

/// Keeps the files up to date from the records of the runs. A file that cannot be written is reported once, and then
/// left: training goes on. Thread safety: one update() at a time is carried out; others wait.
class WatchOutputs {
 public:
  /// `runs`: folder of an experiment or of a run. `tensorboard`: folder of the event files.
  WatchOutputs(WatchOutputOptions options, std::string runs, std::string tensorboard);

  /// Does nothing if the last update was less than half a second ago.
  void update();
  /// Makes the last update, whenever the one before was.
  void finish();
  /// Writes the files from runs that are read already. Throws: ConfigError.
  void write(const experiments::WatchedRuns& runs);

 private:
  void update_now();
  const WatchOutputOptions options_;
  const std::string folder_;
  std::mutex mutex_;  ///< guards the members below
  std::optional<experiments::WatchedRuns> runs_;
  experiments::TensorBoardFolder tensorboard_;
  std::chrono::steady_clock::time_point last_;
  bool failed_ = false;
};

}  // namespace droptest::cli
