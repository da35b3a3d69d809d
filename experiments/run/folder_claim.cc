// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/folder_claim.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/repetition.h"

namespace droptest::experiments {
namespace {

[[noreturn]] void throw_busy(const RunDirectory& directory) {
  throw BusyError(busy_text(directory.path, lock_holder(directory.lock())) +
                  "; try again once it has ended, or see --if-busy");
}

/// `missing`: the records that rank 0 found missing; empty on other ranks.
[[noreturn]] void throw_lacking(const RunDirectory& directory, const std::vector<std::string>& missing) {
  std::string records;
  for (const std::string& one : missing) records += (records.empty() ? ": " : ", ") + one;
  throw LackingError(directory.path + ": finished, but without records that the spec asks for" +
                     (missing.empty() ? ", as rank 0 found" : records) + "; --again runs it once more, from the start");
}

}  // namespace

SharedLock take_lock(const RunDirectory& directory, const ExecuteOptions& options,
                     std::optional<std::chrono::steady_clock::time_point> until) {
  std::optional<FileLock> lock;
  if (options.if_busy == IfBusy::kWait) {
    lock = FileLock::wait_for(
        directory.lock(),
        [&](const std::string& holder) { options.say_waiting(busy_text(directory.path, holder) + "; waiting for it"); },
        [&options, until] {
          return options.stop_requested() || (until && std::chrono::steady_clock::now() >= *until);
        });
  } else {
    lock = FileLock::try_take(directory.lock(), FileLock::Mode::kExclusive);
    if (!lock) throw_busy(directory);
  }
  return lock ? std::make_shared<const FileLock>(std::move(*lock)) : nullptr;
}

bool is_done(const RunDirectory& directory, const ResolvedRun& run, const ExecuteOptions& options) {
  if (!options.from_step) return is_settled(directory, run, options.again);
  if (options.again == Again::kNo && has_result(directory)) {
    throw LackingError(finished_text(directory, *options.from_step));
  }
  return false;
}

FolderState agree_on_folder(comm::Communicator& group, const ResolvedRun& run, const RunDirectory& directory,
                            const ExecuteOptions& options, SharedLock& lock) {
  const std::chrono::milliseconds timeout = run.config.backend.timeout;
  ExecuteOptions told_once = options;
  std::vector<std::string> missing;
  for (;;) {
    auto state = static_cast<std::uint64_t>(FolderState::kOurs);
    if (group.rank() == 0 && options.lock == ExecuteOptions::Lock::kTake) {
      lock = take_lock(directory, told_once, std::chrono::steady_clock::now() + timeout / 4);
      told_once.say_waiting = [](const std::string&) {};
      if (!lock) state = static_cast<std::uint64_t>(FolderState::kBusy);
    }
    const bool takes_lock = options.lock == ExecuteOptions::Lock::kTake;
    if (group.rank() == 0 && state == static_cast<std::uint64_t>(FolderState::kOurs)) {
      if (takes_lock) complete_repetition(directory);
      if (takes_lock) (void)read_summary(directory, options.say_problem);
      if (is_done(directory, run, options)) {
        if (takes_lock) missing = missing_records(directory, run);
        state = static_cast<std::uint64_t>(missing.empty() ? FolderState::kFinished : FolderState::kLacking);
      } else if (takes_lock &&
                 prepare_attempt(run, directory, options.resume, options.from_step).path != directory.path) {
        state = static_cast<std::uint64_t>(FolderState::kOursAgain);
      }
    }
    group.broadcast(comm::Tensor(std::span<std::uint64_t>(&state, 1)), 0,
                    {sim::TrafficClass::kControl, "state of the run's folder", -1});
    if (static_cast<FolderState>(state) == FolderState::kLacking) throw_lacking(directory, missing);
    if (static_cast<FolderState>(state) != FolderState::kBusy) return static_cast<FolderState>(state);
  }
}

}  // namespace droptest::experiments
