// SPDX-License-Identifier: Apache-2.0
// The options with which a run is executed, and the functions that hear of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/checkpoint/checkpointer.h"
#include "experiments/files/file_lock.h"
#include "experiments/records/run_records.h"
#include "experiments/spec/file_hashes.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The time in which the program of a run with a command has to end once it is asked to.
inline constexpr std::chrono::milliseconds kProgramGrace{10000};
/// The interval at which a run that waits asks whether it is to end.
inline constexpr std::chrono::milliseconds kStopPollInterval{50};
/// Environment variable of a command's program: the folder of its run.
inline constexpr const char* kRunFolderVariable = "DROPTEST_RUN_FOLDER";

struct ExecuteOptions {
  nlohmann::json point = nlohmann::json::object();  ///< the point of the run's sweep, for its summary
  /// Command of a rank process that no launcher started. With a run's folder and its sweep point appended, it runs the
  /// run of the folder's spec.json.
  std::vector<std::string> worker_command;
  int user_error_code = -1;  ///< exit code of a rank process that ends all attempts: a next one would have it, too
  /// The hashes with which the run was resolved: before it trains, rank 0 of each attempt compares the files that are
  /// there with those. Borrowed; null: no comparison.
  FileHashes* files = nullptr;
  /// The owner of the lock of the run's folder: this process takes it, or the parent of this process holds it.
  enum class Lock : std::uint8_t { kTake, kHeldByParent } lock = Lock::kTake;
  /// kYes: a finished run is run again if it lacks records, or if `from_step` is given. Its records stay until the new
  /// ones are complete.
  Again again = Again::kNo;
  IfBusy if_busy = IfBusy::kFail;  ///< kSkip throws as kFail does
  /// kWait: hears of the process that the run waits for.
  std::function<void(const std::string& text)> say_waiting = [](const std::string&) {};
  /// Gets each line of metrics.jsonl soon after it is written, on one thread at a time. If a launcher started the
  /// ranks, it is called on rank 0.
  std::function<void(const nlohmann::json& line)> on_line = [](const nlohmann::json&) {};
  /// Whether to end the run as it is. Called some times a second, unless a launcher started the ranks.
  std::function<bool()> stop_requested = [] { return false; };
  /// Hears of errors that do not end the run: checkpoints that cannot be written, or are damaged.
  std::function<void(const std::string& text)> say_problem = [](const std::string&) {};
  CheckpointPlace::Resume resume = CheckpointPlace::Resume::kNewest;
  std::optional<std::uint64_t> from_step{};  ///< the run goes on from this checkpoint; those after it are removed
  std::chrono::milliseconds program_grace = kProgramGrace;  ///< the time of a command's program to end
  /// How many times ranks of earlier attempts could not leave their state (rescue.h).
  std::uint64_t states_not_left = 0;
};

/// A run was ended as it was, because that was requested: it has no summary.
class StoppedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void throw_stopped(const RunDirectory& directory) {
  throw StoppedError(directory.path + ": stopped before its end");
}

/// Whether the trainer follows a request to stop: it ends after its step, with a checkpoint.
inline bool stops_itself(const RunConfig& config) {
  return config.checkpoint && config.checkpoint->on_signal == CheckpointConfig::OnSignal::kTake;
}

}  // namespace droptest::experiments
