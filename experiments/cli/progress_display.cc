// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/progress_display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "experiments/cli/outcome_text.h"

namespace droptest::cli {
namespace {

using experiments::SweepProgress;
using experiments::SweepRun;

constexpr std::size_t kBarWidth = 20;

std::size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

/// Share of the sweep that is done, by steps; a run that ended is wholly done.
double share_done(const SweepProgress& progress) {
  double done = 0;
  double all = 0;
  for (const SweepRun& run : progress.runs) {
    const bool going = run.state == SweepRun::State::kWaiting || run.state == SweepRun::State::kRunning ||
                       run.state == SweepRun::State::kBusy;
    all += static_cast<double>(run.steps);
    done += static_cast<double>(going ? std::min(run.step, run.steps) : run.steps);
  }
  return all == 0 ? 1 : done / all;
}

}  // namespace

std::string progress_line(const SweepProgress& progress, std::size_t columns) {
  const auto filled = static_cast<std::size_t>(share_done(progress) * kBarWidth);
  std::string line = "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '-') + "] " +
                     std::to_string(progress.ended()) + "/" + std::to_string(progress.runs.size()) + " runs";
  if (progress.failed() != 0) line += " (" + std::to_string(progress.failed()) + " failed)";
  if (progress.busy() != 0) line += " (" + std::to_string(progress.busy()) + " busy elsewhere)";
  if (const double rate = progress.steps_per_second(); rate > 0) {
    line += ", " + std::to_string(std::llround(rate)) + " steps/s";
  }
  if (const auto left = progress.seconds_left(); left && *left > 0) line += ", " + duration_text(*left) + " left";
  std::string losses;
  for (std::size_t i = 0; i < progress.runs.size(); ++i) {
    const SweepRun& run = progress.runs[i];
    if (run.state == SweepRun::State::kRunning && run.same_as == i && run.train_loss) {
      losses += " " + loss_text(*run.train_loss);
    }
  }
  if (!losses.empty()) line += ", loss" + losses;
  if (line.size() > columns) line.resize(columns);
  return line;
}

ProgressDisplay::Mode ProgressDisplay::mode_of_stderr() {
  return ::isatty(STDERR_FILENO) != 0 ? Mode::kTerminal : Mode::kLines;
}

void ProgressDisplay::show(const SweepProgress& progress) {
  if (mode_ == Mode::kQuiet) return;
  if (mode_ == Mode::kTerminal) {
    // Back to the line's start, draw, erase what is left of the line before.
    std::cerr << "\r" << progress_line(progress, terminal_columns() - 1) << "\x1b[K" << std::flush;
    line_open_ = true;
    return;
  }
  if (progress.ended() == ended_shown_ && progress.busy() == busy_shown_) return;
  ended_shown_ = progress.ended();
  busy_shown_ = progress.busy();
  std::cerr << progress_line(progress, std::string::npos) << "\n" << std::flush;
}

void ProgressDisplay::close() {
  if (line_open_) std::cerr << "\n";
  line_open_ = false;
}

}  // namespace droptest::cli
