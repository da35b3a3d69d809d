// SPDX-License-Identifier: Apache-2.0
// A resolved run -> a folder of records.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/records/run_records.h"
#include "experiments/run/execute_options.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// Trains the run, writes its records and returns the summary. Ranks are threads of this process, or processes: a
/// launcher has started this process as one of them (comm/rendezvous/launch_environment.h), or it starts all of them.
/// Rank 0 writes the records. It or its parent holds the lock of the folder meanwhile. The summary is written last. A
/// run that diverges has a result; a run that fails has a summary with status `failed`. The failed repetition of a
/// finished run is recorded in the folder `again`.
/// If there is a result once the lock is taken, nothing is run. If a launcher started the ranks, a result without the
/// records that are asked for is a ConfigError on every rank.
/// Throws: the error of the run, after the summary is written; BusyError, with nothing written; StoppedError. A rank
/// that stalled may have left its thread behind: after an error the process should end without unwinding.
nlohmann::json execute_run(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options);

}  // namespace droptest::experiments
