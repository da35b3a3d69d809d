// SPDX-License-Identifier: Apache-2.0
// Runs one run for a user: with a display, messages and exit codes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/cli/watch_outputs.h"
#include "experiments/records/run_records.h"
#include "experiments/run/execute_run.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::cli {

/// The choices of the user who asks for the run.
struct RunManner {
  experiments::IfBusy if_busy = experiments::IfBusy::kFail;
  experiments::Again again = experiments::Again::kNo;
  experiments::CheckpointPlace::Resume resume = experiments::CheckpointPlace::Resume::kNewest;
  std::optional<std::uint64_t> from_step;  ///< ExecuteOptions::from_step
  bool quiet = false;
  WatchOutputOptions outputs;
};

/// The command of a process that runs one folder's run.
std::vector<std::string> worker_command();

/// Whether a launcher started this process as one rank of the run.
bool is_launched(const experiments::RunConfig& config);

/// Returns an exit code. `files`: the hashes with which the run was resolved. `say_first` prints warnings before a run
/// that has no result. Throws: the errors of execute_run().
int run_one(const experiments::PlannedRun& planned, const experiments::RunDirectory& directory,
            experiments::FileHashes& files, const RunManner& how, const std::function<void()>& say_first);

}  // namespace droptest::cli
