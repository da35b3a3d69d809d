// SPDX-License-Identifier: Apache-2.0
// The ranks of a run in this process: all of them as threads, or one that a launcher started.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "comm/rendezvous/launch_environment.h"
#include "experiments/records/run_records.h"
#include "experiments/run/execute_options.h"
#include "experiments/run/folder_claim.h"
#include "experiments/run/sigterm_watch.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// Trains with a thread for each rank and returns the summary. Throws: the error of the run; StoppedError.
nlohmann::json run_threads(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options,
                           const SharedLock& lock);

/// The folder in which ranks meet if the spec names no rendezvous.
std::string default_rendezvous(const RunDirectory& directory);

/// Trains as one rank: this process. Takes the lock on rank 0 (agree_on_folder()). Returns the summary on rank 0, null
/// on the others. Throws: the error of the run; BusyError; LackingError; StoppedError.
nlohmann::json run_as_rank(const ResolvedRun& run, const RunDirectory& folder, const ExecuteOptions& execute,
                           const comm::LaunchEnvironment& launch, SigtermWatch& sigterm, SharedLock& lock);

}  // namespace droptest::experiments
