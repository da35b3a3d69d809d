// SPDX-License-Identifier: Apache-2.0
// A run with processes as ranks: this process starts them, and starts them again if they die.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/records/run_records.h"
#include "experiments/run/execute_options.h"
#include "experiments/run/folder_claim.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// Starts a process for each rank, waits for them, and begins further attempts as /restart and /elastic say
/// (AttemptSeries). `lock`: the lock of the folder, which the ranks get; may be null. Returns the summary that rank 0
/// has written. Throws: RankFailure of the last attempt; StoppedError; CommError if no rank wrote a summary.
nlohmann::json run_processes(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options,
                             const SharedLock& lock);

}  // namespace droptest::experiments
