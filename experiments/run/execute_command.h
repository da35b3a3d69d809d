// SPDX-License-Identifier: Apache-2.0
// A run with a program of the user's own -> a folder of records.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/records/run_records.h"
#include "experiments/run/execute_options.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// The results of a program's run, from the lines of its metrics.jsonl. droptest.Network.finish() of the Python package
/// has the same rules, for the summary of a program that no sweep has started.
struct ProgramOutcome {
  std::uint64_t steps = 0;                      ///< the last line's step
  std::uint64_t tokens = 0;                     ///< the last number of tokens that a line has
  double seconds = 0;                           ///< the last line's seconds
  std::optional<double> train_final_loss;       ///< mean of the last ten training losses; absent: none or not finite
  std::optional<double> validation_final_loss;  ///< the last validation loss; absent: none, or not finite
  std::optional<double> validation_best_loss;   ///< the smallest validation loss
  std::optional<std::uint64_t> diverged_step;   ///< the step of the first line with a loss that is not finite
};
ProgramOutcome outcome_of(const std::vector<nlohmann::json>& lines);

/// The lines of a program's metrics.jsonl that count; none without the file. A line with a smaller step than the line
/// before comes from a program that has begun again: it replaces the lines from that step on. So does the first line
/// after the `earlier_lines` lines of an earlier attempt. Damaged lines of earlier attempts are left out. Throws:
/// ConfigError with the file, the number of the line and its errors by metrics.schema.json.
std::vector<nlohmann::json> lines_that_count(const std::string& metrics_file, std::uint64_t earlier_lines = 0);
/// Copies the results into a summary.
void take_outcome(const ProgramOutcome& outcome, RunSummary& summary);

/// Starts the program of the run, waits for its end, and writes network.json, spec.json, program.log (its output) and
/// summary.json into the folder; metrics.jsonl and the counts of its packets are the program's own. The caller holds
/// the lock of the folder. Returns the summary. Throws: CommError if the program ends with an error, or without the
/// counts of the network that it was given; StoppedError.
nlohmann::json execute_command(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options);

}  // namespace droptest::experiments
