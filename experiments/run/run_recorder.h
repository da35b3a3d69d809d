// SPDX-License-Identifier: Apache-2.0
// Writes the records of one run as it goes on; docs/records.md.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "experiments/records/metrics.h"
#include "experiments/records/run_records.h"
#include "experiments/run/trainer.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// Used by rank 0 alone. `run` is borrowed.
class RunRecorder {
 public:
  /// Makes the folder, removes the records of an earlier attempt, and writes spec.json.
  /// Throws: ConfigError with the path and the system's reason.
  RunRecorder(const ResolvedRun& run, const RunDirectory& directory, nlohmann::json point);

  void append(const MetricsLine& line) { metrics_.append(line); }

  /// Writes weights, statistics and, last, the summary, which is returned.
  nlohmann::json finish(const TrainingOutcome& outcome);

 private:
  const ResolvedRun& run_;
  RunDirectory directory_;
  nlohmann::json point_;
  std::chrono::system_clock::time_point started_;
  MetricsWriter metrics_;
};

/// Writes the summary of a run that failed, with as much of it as metrics.jsonl tells. Throws: ConfigError.
void record_failure(const ResolvedRun& run, const RunDirectory& directory, const nlohmann::json& point,
                    const std::string& error);

}  // namespace droptest::experiments
