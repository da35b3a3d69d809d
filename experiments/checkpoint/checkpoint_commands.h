// SPDX-License-Identifier: Apache-2.0
// The user's commands before and after each checkpoint of a run.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/process/child_process.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Hears on rank 0 of checkpoints that failed or were damaged, and of commands that failed: the step, and the error in
/// words.
using CheckpointReport = std::function<void(std::uint64_t step, const std::string& error)>;

/// Runs one command at a time, on rank 0. Owner: one rank's Checkpointer. Ranks: all of the group. Everything is
/// borrowed.
class CheckpointCommands {
 public:
  /// `waits`: called on rank 0 while ranks wait for a command, some times in a timeout.
  CheckpointCommands(const RunConfig& config, comm::Communicator& group, const CheckpointFolder& folder,
                     const CheckpointReport& report, const std::function<void()>& waits)
      : config_(config), group_(group), folder_(folder), report_(report), waits_(waits) {}

  /// Starts the command, which gets the step and the checkpoint's folder as variables. An empty one is none.
  void start(const std::vector<std::string>& command, std::uint64_t step);
  /// Reports the command if it has ended with an error.
  void poll() { (void)has_ended(std::chrono::milliseconds(0)); }
  /// Returns when the command has ended. Ranks: all, which hear from rank 0 more often than they time out.
  void await();

 private:
  /// Whether the last command has ended, after that time at most.
  bool has_ended(std::chrono::milliseconds wait);

  struct Running {
    ChildProcess process;
    std::string program;
    std::uint64_t step;
  };
  const RunConfig& config_;
  comm::Communicator& group_;
  const CheckpointFolder& folder_;
  const CheckpointReport& report_;
  const std::function<void()>& waits_;
  std::optional<Running> running_;
};

}  // namespace droptest::experiments
