// SPDX-License-Identifier: Apache-2.0
// The claim to write into a run's folder: its lock, and the state in which an attempt finds it.
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

/// The lock of a folder. execute_run() and the rank threads share it: no other process comes in while a thread writes.
using SharedLock = std::shared_ptr<const FileLock>;

/// Takes the lock of the run's folder. With IfBusy::kWait it waits until then, or until a request to stop, and returns
/// null. Throws: BusyError.
SharedLock take_lock(const RunDirectory& directory, const ExecuteOptions& options,
                     std::optional<std::chrono::steady_clock::time_point> until = std::nullopt);

/// The state of the run's folder as rank 0 found it, for all ranks. kOursAgain: the records go to its folder `again`.
enum class FolderState : std::uint64_t { kOurs, kOursAgain, kFinished, kLacking, kBusy };

/// A finished run lacks something that is asked for; its result stays.
class LackingError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Whether there is nothing to do. The caller or its parent holds the lock. Throws: LackingError for a step of a
/// finished run without Again::kYes.
bool is_done(const RunDirectory& directory, const ResolvedRun& run, const ExecuteOptions& options);

/// Takes the lock on rank 0, unless its parent holds it, and prepares the attempt. Only rank 0 needs access to the
/// folder, and it decides for all ranks. While it waits for the lock, it sends to the others more often than their
/// timeout. Throws: LackingError on every rank; BusyError on rank 0. Ranks: all.
FolderState agree_on_folder(comm::Communicator& group, const ResolvedRun& run, const RunDirectory& directory,
                            const ExecuteOptions& options, SharedLock& lock);

}  // namespace droptest::experiments
