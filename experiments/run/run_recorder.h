// SPDX-License-Identifier: Apache-2.0
// The records of one run, written as it goes on; docs/records.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/records/metrics.h"
#include "experiments/records/run_records.h"
#include "experiments/spec/resolve.h"
#include "experiments/training/alert_watch.h"
#include "experiments/training/trainer.h"

namespace droptest::experiments {

/// The records of one run. Used only by rank 0. `run` is borrowed.
class RunRecorder {
 public:
  /// Makes the folder, removes the results of an earlier attempt, and writes spec.json.
  /// Throws: ConfigError with the path and the system's reason.
  RunRecorder(
      const ResolvedRun& run, const RunDirectory& directory, nlohmann::json point,
      AlertWatch::Report report = [](const std::string&) {});

  /// Called before the first line. metrics.jsonl and events.jsonl keep their lines up to that step; absent: they begin
  /// anew. Reports that step and the lines that metrics.jsonl lacks.
  void start(std::optional<std::uint64_t> step);
  /// Writes the line, and the anomalies in it.
  void append(const nlohmann::json& line);
  /// Writes trace.json. Throws: ConfigError with the path and the system's reason.
  void write_trace(const std::vector<nlohmann::json>& ranks);
  AlertWatch& alerts() { return alerts_; }

  /// Writes weights, statistics and, last, the summary, which is returned.
  nlohmann::json finish(const TrainingOutcome& outcome);

 private:
  const ResolvedRun& run_;
  RunDirectory directory_;
  nlohmann::json point_;
  std::chrono::system_clock::time_point started_;
  std::optional<MetricsWriter> metrics_;
  AlertWatch alerts_;
  AlertWatch::Report report_;
  std::string missing_lines_;  ///< text of MissingLines
  bool told_ = false;          ///< whether it was reported that the run continues; parts of a run call start() again
};

/// Writes the summary of a run that failed, with as much of it as metrics.jsonl tells. Throws: ConfigError.
void record_failure(const ResolvedRun& run, const RunDirectory& directory, const nlohmann::json& point,
                    const std::string& error);

}  // namespace droptest::experiments
