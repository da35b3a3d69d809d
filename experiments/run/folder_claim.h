// SPDX-License-Identifier: Apache-2.0
// Who writes into a run's folder: its lock, and the state in which an attempt finds it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "experiments/files/file_lock.h"
#include "experiments/records/run_records.h"
#include "experiments/run/execute_options.h"
#include "experiments/spec/resolve.h"
#include "sim/error.h"

namespace droptest::experiments {

/// Shared by execute_run() and the rank threads, so that no other process comes in while a thread can write.
using SharedLock = std::shared_ptr<const FileLock>;

/// The lock of the run's folder, or nothing where it has to be waited for longer than that. Throws: BusyError.
SharedLock take_lock(const RunDirectory& directory, const ExecuteOptions& options,
                     std::optional<std::chrono::steady_clock::time_point> until = std::nullopt);

/// The state of the run's folder as rank 0 found it, for all ranks. kOursAgain: the records go to its folder `again`.
enum class FolderState : std::uint64_t { kOurs, kOursAgain, kFinished, kLacking, kBusy };

/// The run is finished, but lacks what is asked for: its result stays.
class LackingError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Whether there is nothing to do. Holds the lock. Throws: LackingError for a step of a finished run without
/// Again::kYes.
bool is_done(const RunDirectory& directory, const ResolvedRun& run, const ExecuteOptions& options);

/// Ranks: all. Only rank 0 needs access to the folder, and it decides for all. While it waits, it sends to the others
/// more often than their timeout. Takes the lock on rank 0.
FolderState agree_on_folder(comm::Communicator& group, const ResolvedRun& run, const RunDirectory& directory,
                            const ExecuteOptions& options, SharedLock& lock);

}  // namespace droptest::experiments
