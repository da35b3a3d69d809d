// SPDX-License-Identifier: Apache-2.0
#include "experiments/checkpoint/checkpoint_commands.h"

#include <exception>

#include "comm/rank_agreement.h"
#include "experiments/files/atomic_file.h"

namespace droptest::experiments {

void CheckpointCommands::start(const std::vector<std::string>& command, std::uint64_t step) {
  if (group_.rank() != 0 || command.empty()) return;
  ChildProcess::Options options;
  options.arguments = command;
  options.environment = {{"DROPTEST_STEP", std::to_string(step)}, {"DROPTEST_CHECKPOINT", folder_.of_step(step)}};
  options.log = folder_.hook_log();
  options.log_mode = ChildProcess::Options::Log::kAppend;
  try {
    make_directories(folder_.path());
    running_.emplace(Running{ChildProcess::start(options), command.front(), step});
  } catch (const std::exception& error) {
    report_(step, error.what());
  }
}

bool CheckpointCommands::has_ended(std::chrono::milliseconds wait) {
  if (!running_) return true;
  const std::optional<ExitStatus> status = running_->process.wait_for(wait);
  if (!status) return false;
  if (!status->succeeded()) report_(running_->step, "the command " + running_->program + " " + status->describe());
  running_.reset();
  return true;
}

void CheckpointCommands::await() {
  if (config_.checkpoint->before.empty() && config_.checkpoint->after.empty()) return;
  bool ended = false;
  while (!ended) {
    ended = number_of_root(has_ended(config_.backend.timeout / 4) ? 1 : 0, group_, "command of a checkpoint") != 0;
    if (group_.rank() == 0) waits_();
  }
}

}  // namespace droptest::experiments
