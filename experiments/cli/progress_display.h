// SPDX-License-Identifier: Apache-2.0
// How far a sweep is: one line that is drawn over on a terminal, plain lines elsewhere.
#pragma once

#include <cstddef>
#include <string>

#include "experiments/run/sweep_runner.h"

namespace droptest::cli {

/// "[#####-----] 12/24 runs, 350 steps/s, 3 min 20 s left, loss 2.431 2.502": at most `columns` wide.
std::string progress_line(const experiments::SweepProgress& progress, std::size_t columns);

/// Writes to standard error. Owner: the sweep command, one at a time.
class ProgressDisplay {
 public:
  enum class Mode : unsigned char {
    kTerminal,  ///< one line, drawn over
    kLines,     ///< a line for each run that ends, or that another process is found at work on
    kQuiet,     ///< nothing
  };
  explicit ProgressDisplay(Mode mode) : mode_(mode) {}
  /// kTerminal where standard error is one.
  static Mode mode_of_stderr();

  void show(const experiments::SweepProgress& progress);
  /// Leaves the line that is there, so that other text can follow.
  void close();

 private:
  Mode mode_;
  std::size_t ended_shown_ = 0;
  std::size_t busy_shown_ = 0;
  bool line_open_ = false;
};

}  // namespace droptest::cli
