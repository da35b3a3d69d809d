// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/execute_run.h"

#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "comm/backend_registry.h"
#include "comm/rendezvous/launch_environment.h"
#include "experiments/files/file_lock.h"
#include "experiments/run/execute_command.h"
#include "experiments/run/folder_claim.h"
#include "experiments/run/repetition.h"
#include "experiments/run/run_processes.h"
#include "experiments/run/run_recorder.h"
#include "experiments/run/sigterm_watch.h"
#include "experiments/run/training_ranks.h"
#include "experiments/training/run_device.h"
#include "sim/error.h"

namespace droptest::experiments {

nlohmann::json execute_run(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options) {
  const comm::BackendEntry& backend = comm::backend_entry(run.config.backend.name);
  if (!backend.built) backend.connect({});  // throws, and lists the built backends
  require_run_device(run.config);
  std::optional<comm::LaunchEnvironment> launch;
  try {
    launch = comm::launch_environment(comm::process_environment());
  } catch (const ConfigError&) {
    if (backend.rank_kind == comm::RankKind::kProcesses) throw;
  }
  if (backend.rank_kind == comm::RankKind::kThreads) {
    if (launch && launch->world_size > 1) {
      throw ConfigError("/backend/name: got \"" + run.config.backend.name +
                        "\", whose ranks are threads of one process, but " + launch->launcher + " started " +
                        std::to_string(launch->world_size) +
                        " processes, each of which would train all of the run; start one, or use gloo");
    }
    launch.reset();
  }
  std::optional<SigtermWatch> sigterm;
  if (launch) sigterm.emplace();
  const bool takes_lock = options.lock == ExecuteOptions::Lock::kTake;
  SharedLock lock;
  RunDirectory attempt = directory;
  if (!launch && takes_lock) {
    lock = take_lock(directory, options);
    if (!lock) throw_stopped(directory);
    complete_repetition(directory);
    if (is_done(directory, run, options)) return *read_summary(directory);
    attempt = prepare_attempt(run, directory, options.resume, options.from_step);
  }
  try {
    if (launch) return run_as_rank(run, directory, options, *launch, *sigterm, lock);
    nlohmann::json summary;
    if (run.config.command) {
      summary = execute_command(run, attempt, options);
    } else if (backend.rank_kind == comm::RankKind::kThreads) {
      summary = run_threads(run, attempt, options, lock);
    } else {
      summary = run_processes(run, attempt, options, lock);
    }
    if (attempt.path != directory.path) complete_repetition(directory);
    return summary;
  } catch (const BusyError&) {
    throw;  // the folder belongs to another process
  } catch (const LackingError&) {
    throw;  // the result stays
  } catch (const StoppedError&) {
    throw;  // the records so far stay as they are
  } catch (const std::exception& error) {
    if (launch && launch->rank != 0) throw;
    if (takes_lock && !lock) {  // the ranks did not get as far as the lock
      std::optional<FileLock> late = FileLock::try_take(directory.lock(), FileLock::Mode::kExclusive);
      if (!late || has_result(directory)) throw;
      lock = std::make_shared<const FileLock>(std::move(*late));
    }
    const RunDirectory failed = takes_lock ? attempt_folder(directory) : directory;
    if (has_result(failed)) throw;  // a result is never replaced by a failure
    record_failure(run, failed, options.point, error.what());
    throw;
  }
}

}  // namespace droptest::experiments
