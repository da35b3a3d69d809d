// SPDX-License-Identifier: Apache-2.0
// Records of runs -> event files of TensorBoard. docs/watching.md.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "experiments/watch/watched_runs.h"

namespace droptest::experiments {

/// Hyperparameters of a sweep point: members of objects by their pointers, percentages as fractions, so that they sort
/// as numbers.
nlohmann::json hyperparameters(const nlohmann::json& point);

/// Keeps an event file for each run, from lines that it reads itself: <folder>/<point>/seed
/// <seed>/events.out.tfevents.*. Files are only appended to; a run that begins anew gets a new file in place of the old
/// one. Only one object writes a folder at a time.
class TensorBoardFolder {
 public:
  explicit TensorBoardFolder(std::string folder) : folder_(std::move(folder)) {}

  /// Writes the events that are new since the last call. Throws: ConfigError with the path and the system's reason.
  void update(const WatchedRuns& runs);

  std::size_t files() const { return written_.size(); }
  const std::string& folder() const { return folder_; }

 private:
  struct Written {
    std::string folder;
    std::string file;  ///< empty: none yet
    MetricsTail lines;
    std::uint64_t attempt = 0;   ///< attempt of `lines`
    nlohmann::json last_line{};  ///< null: none yet
    bool ended = false;
  };
  std::string folder_of(const WatchedRun& run);
  void update_run(const WatchedRun& run, Written& written);
  void begin_file(const WatchedRun& run, Written& written);
  std::string folder_;
  std::map<std::string, Written> written_;       ///< written events by folder of the run
  std::map<std::string, std::string> taken_by_;  ///< folder of the run by folder of events
};

}  // namespace droptest::experiments
