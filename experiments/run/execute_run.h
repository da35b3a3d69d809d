// SPDX-License-Identifier: Apache-2.0
// A resolved run -> a folder of records.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/records/run_records.h"
#include "experiments/run/execute_options.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// Trains the run and writes its records. Ranks are threads of this process, or processes: then this process is one
/// of them where a launcher says so (comm/rendezvous/launch_environment.h), else it starts them and waits.
/// Records are written by rank 0, which holds the lock of the folder meanwhile, or has a parent that does; the summary
/// is written last, also where the run fails, with status `failed`; what fails as the repetition of a finished run is
/// recorded in the folder `again`. Where there is a result once the lock is taken, nothing is run; where a launcher
/// started the ranks, a result without the records that are asked for is a ConfigError on every rank. Returns the
/// summary. A run that diverges is a result. Throws: the error of the run, after the summary is written; BusyError,
/// with nothing written; StoppedError. A rank that stalled may have left its thread behind: after an error the process
/// should end without unwinding.
nlohmann::json execute_run(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options);

}  // namespace droptest::experiments
