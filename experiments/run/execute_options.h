// SPDX-License-Identifier: Apache-2.0
// How a run is executed: what is asked for, and who hears of it.
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

/// What the program of a run with a command has to end in once it is asked to.
inline constexpr std::chrono::milliseconds kProgramGrace{10000};
/// How often a run that waits asks whether it is to end.
inline constexpr std::chrono::milliseconds kStopPollInterval{50};
/// Environment variable of that program with the folder of its run.
inline constexpr const char* kRunFolderVariable = "DROPTEST_RUN_FOLDER";

struct ExecuteOptions {
  nlohmann::json point = nlohmann::json::object();  ///< of the sweep that the run belongs to, for its summary
  /// Command of a rank process that no launcher started. With a run's folder and its sweep point appended, it runs the
  /// run of the folder's spec.json.
  std::vector<std::string> worker_command;
  int user_error_code = -1;  ///< exit code of a rank process that ends all attempts: the next one would end likewise
  /// The hashes with which the run was resolved: before it trains, rank 0 of each attempt compares the files that are
  /// there with those. Borrowed; null: no comparison.
  FileHashes* files = nullptr;
  /// Who holds the lock of the run's folder: this process takes it, or the one that started this process has it.
  enum class Lock : std::uint8_t { kTake, kHeldByParent } lock = Lock::kTake;
  /// kYes: a finished run is run again where it lacks records, or where `from_step` is given. Its records stay until
  /// the new ones are complete.
  Again again = Again::kNo;
  IfBusy if_busy = IfBusy::kFail;  ///< kSkip throws as kFail does: there is nothing else to do
  std::function<void(const std::string& text)> say_waiting = [](const std::string&) {};  ///< kWait: for whom
  /// Gets each line of metrics.jsonl soon after it is written, on any one thread at a time; where a launcher started
  /// the ranks, on rank 0.
  std::function<void(const nlohmann::json& line)> on_line = [](const nlohmann::json&) {};
  /// Asked some times a second, where no launcher started the ranks: whether to end the run as it is.
  std::function<bool()> stop_requested = [] { return false; };
  /// Hears of errors that do not end the run: checkpoints that cannot be written, or are damaged.
  std::function<void(const std::string& text)> say_problem = [](const std::string&) {};
  CheckpointPlace::Resume resume = CheckpointPlace::Resume::kNewest;
  std::optional<std::uint64_t> from_step{};  ///< the run goes on from this checkpoint; those after it are removed
  std::chrono::milliseconds program_grace = kProgramGrace;  ///< that the program of a command has to end in
  /// How many times ranks of attempts before could not leave their state (rescue.h).
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
