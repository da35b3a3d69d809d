// SPDX-License-Identifier: Apache-2.0
// The progress of a sweep or a run: a line that is drawn over on a terminal, plain lines elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "experiments/run/sweep_runner.h"

namespace droptest::cli {

enum class DisplayMode : std::uint8_t {
  kTerminal,  ///< whole lines, and a line that is drawn over
  kLines,     ///< whole lines
  kQuiet,     ///< no lines
};
/// kTerminal if standard error is a terminal.
DisplayMode display_mode_of_stderr();

/// The line at the end of a terminal that is drawn over.
class DrawnLine {
 public:
  void draw(const std::string& text);
  /// Takes the line away, so that other text can come in its place.
  void clear();
  /// Leaves the line that is there, so that other text can follow.
  void close();

 private:
  bool open_ = false;
};

/// The display of a sweep: one drawn line, or a line for each run that ends, or that another process is found at work
/// on. Owner: the command, one at a time.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(DisplayMode mode) : mode_(mode) {}

  void show(const experiments::SweepProgress& progress);
  void close() { line_.close(); }

 private:
  DisplayMode mode_;
  std::size_t ended_shown_ = 0;
  std::size_t busy_shown_ = 0;
  DrawnLine line_;
};

/// The display of a run: a line for each logged step, and on a terminal a drawn bar below. Thread safety: all methods
/// may be called at once.
class RunDisplay {
 public:
  /// `steps`: number of steps that the run will take.
  RunDisplay(DisplayMode mode, std::uint64_t steps) : mode_(mode), steps_(steps) {}

  /// Shows a line of metrics.jsonl.
  void show(const nlohmann::json& line);
  void close();

  /// Whether no line came.
  bool empty() const;
  /// The lines in short: "step 120 of 300: validation loss 2.51 (best 2.50), training loss 2.60".
  std::string summary() const;

 private:
  std::string step_text(const nlohmann::json& line) const;
  std::string bar_line() const;

  const DisplayMode mode_;
  const std::uint64_t steps_;
  mutable std::mutex mutex_;  ///< guards the members below
  DrawnLine bar_;
  nlohmann::json first_;  ///< the first line
  nlohmann::json last_;   ///< the last line; null before any
  nlohmann::json train_loss_;
  nlohmann::json validation_loss_;
  nlohmann::json best_validation_loss_;
};

}  // namespace droptest::cli
