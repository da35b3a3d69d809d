// SPDX-License-Identifier: Apache-2.0
// A foreign program with all processes that it starts: a launcher's ranks have sessions of their own.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "experiments/process/child_process.h"

namespace droptest::experiments {

/// Owner: the object; its destructor kills what still runs. One tree at a time in a process that has no other children:
/// from the first tree on, orphaned processes become children of this process.
class ProgramTree {
 public:
  /// Throws: as ChildProcess::start().
  explicit ProgramTree(const ChildProcess::Options& options);
  ~ProgramTree();
  ProgramTree(const ProgramTree&) = delete;
  ProgramTree& operator=(const ProgramTree&) = delete;

  /// The status of the program itself once it has ended; does not block.
  std::optional<ExitStatus> poll() { return program_.poll(); }
  /// Asks the program and its process group to end, and kills every process of the tree that has not ended within
  /// `grace`. Blocks.
  void stop(std::chrono::milliseconds grace);
  /// Called after the end of the program: waits that long for the processes that it has left, then stops them as
  /// stop().
  void end_rest(std::chrono::milliseconds patience, std::chrono::milliseconds grace);

 private:
  bool wait_for_all(std::chrono::milliseconds longest);

  ChildProcess program_;
};

/// Makes this process the parent of all processes below it that are orphaned from now on.
void adopt_orphans();

/// The processes below this one that have not ended. Source: proc(5).
std::vector<pid_t> descendants();

/// Kills the descendants with this variable and value in their environment, and reaps them.
void kill_descendants_with(const std::string& variable, const std::string& value);

}  // namespace droptest::experiments
