// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/progress_display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

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
    const std::uint64_t steps = std::max(run.steps, std::uint64_t{1});  // 0: not known, of a program of the user's own
    all += static_cast<double>(steps);
    done += static_cast<double>(going ? std::min(run.step, run.steps) : steps);
  }
  return all == 0 ? 1 : done / all;
}

/// A bar for a share, ten of twenty: "[##########----------]".
std::string bar_text(double share) {
  const auto filled = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * kBarWidth);
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '-') + "]";
}

/// A sweep's line of at most `columns`: "[#####-----] 12/24 runs, 350 steps/s, 3 min 20 s left, loss 2.431 2.502".
std::string progress_line(const SweepProgress& progress, std::size_t columns) {
  std::string line = bar_text(share_done(progress)) + " " + std::to_string(progress.ended()) + "/" +
                     std::to_string(progress.runs.size()) + " runs";
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

}  // namespace

DisplayMode display_mode_of_stderr() {
  return ::isatty(STDERR_FILENO) != 0 ? DisplayMode::kTerminal : DisplayMode::kLines;
}

void DrawnLine::draw(const std::string& text) {
  // Goes back to the line's start, draws, and erases the rest of the line before.
  std::cerr << "\r" << text << "\x1b[K" << std::flush;
  open_ = true;
}

void DrawnLine::clear() {
  if (open_) std::cerr << "\r\x1b[K";
  open_ = false;
}

void DrawnLine::close() {
  if (open_) std::cerr << "\n";
  open_ = false;
}

void ProgressDisplay::show(const SweepProgress& progress) {
  if (mode_ == DisplayMode::kQuiet) return;
  if (mode_ == DisplayMode::kTerminal) return line_.draw(progress_line(progress, terminal_columns() - 1));
  if (progress.ended() == ended_shown_ && progress.busy() == busy_shown_) return;
  ended_shown_ = progress.ended();
  busy_shown_ = progress.busy();
  std::cerr << progress_line(progress, std::string::npos) << "\n" << std::flush;
}

void RunDisplay::show(const nlohmann::json& line) {
  const std::lock_guard lock(mutex_);
  if (last_.is_null()) first_ = line;
  last_ = line;
  if (line.contains("train_loss")) train_loss_ = line.at("train_loss");
  if (line.contains("validation_loss")) {
    validation_loss_ = line.at("validation_loss");
    const bool is_best = validation_loss_.is_number() &&
                         (!best_validation_loss_.is_number() || validation_loss_ < best_validation_loss_);
    if (is_best) best_validation_loss_ = validation_loss_;
  }
  if (mode_ == DisplayMode::kQuiet) return;
  bar_.clear();
  std::cerr << step_text(line) << "\n" << std::flush;
  if (mode_ == DisplayMode::kTerminal && steps_ != 0) bar_.draw(bar_line().substr(0, terminal_columns() - 1));
}

void RunDisplay::close() {
  const std::lock_guard lock(mutex_);
  bar_.clear();
  std::cerr << std::flush;
}

bool RunDisplay::empty() const {
  const std::lock_guard lock(mutex_);
  return last_.is_null();
}

std::string RunDisplay::summary() const {
  const std::lock_guard lock(mutex_);
  return "step " + std::to_string(last_.value("step", std::uint64_t{0})) +
         (steps_ == 0 ? "" : " of " + std::to_string(steps_)) + ": validation loss " + loss_text(validation_loss_) +
         " (best " + loss_text(best_validation_loss_) + "), training loss " + loss_text(train_loss_);
}

/// The step's measurements, and the speed of training since the first line.
std::string RunDisplay::step_text(const nlohmann::json& line) const {
  std::string text = "step " + std::to_string(line.value("step", std::uint64_t{0})) +
                     (steps_ == 0 ? "" : "/" + std::to_string(steps_)) + ":";
  std::string comma;
  const auto add = [&](const std::string& part) {
    text += comma + " " + part;
    comma = ",";
  };
  if (line.contains("train_loss")) add("training loss " + loss_text(line.at("train_loss")));
  if (line.contains("validation_loss")) add("validation loss " + loss_text(line.at("validation_loss")));
  if (line.contains("classification")) {
    std::array<char, 32> percent{};
    const double accuracy = line.at("classification").at("accuracy").at("value").get<double>();
    std::snprintf(percent.data(), percent.size(), "accuracy %.2f %%", 100 * accuracy);
    add(percent.data());
  }
  if (line.contains("selection_loss")) add("selection loss " + loss_text(line.at("selection_loss")));
  const double seconds = line.value("seconds", 0.0) - first_.value("seconds", 0.0);
  if (const double tokens = line.value("tokens", 0.0) - first_.value("tokens", 0.0); tokens > 0 && seconds > 0) {
    add(std::to_string(std::llround(tokens / seconds)) + " tokens/s");
  }
  return text;
}

std::string RunDisplay::bar_line() const {
  const double step = last_.value("step", 0.0);
  const double left = static_cast<double>(steps_) - step;
  std::string text = bar_text(step / static_cast<double>(steps_)) + " " + std::to_string(std::llround(step)) + "/" +
                     std::to_string(steps_) + " steps";
  const double seconds = last_.value("seconds", 0.0) - first_.value("seconds", 0.0);
  const double done = step - first_.value("step", 0.0);
  if (done > 0 && left > 0) text += ", " + duration_text(left * seconds / done) + " left";
  return text;
}

}  // namespace droptest::cli
