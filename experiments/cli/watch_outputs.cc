// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/watch_outputs.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <utility>

#include "experiments/files/atomic_file.h"
#include "experiments/watch/open_metrics.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

constexpr std::chrono::milliseconds kOutputInterval{500};

}  // namespace

void add_watch_output_options(CLI::App& command, WatchOutputOptions& options) {
  command.add_flag(
      "--tensorboard", options.tensorboard,
      "Keep event files for TensorBoard in the experiment's folder: tensorboard --logdir <out>/<name>/tensorboard");
  command.add_option(
      "--openmetrics", options.open_metrics,
      "Keep a file of metrics in OpenMetrics' text format; node_exporter reads it under a name that ends in .prom");
}

WatchOutputs::WatchOutputs(WatchOutputOptions options, std::string runs, std::string tensorboard)
    : options_(std::move(options)), folder_(std::move(runs)), tensorboard_(std::move(tensorboard)) {}

void WatchOutputs::update() {
  const std::lock_guard lock(mutex_);
  if (std::chrono::steady_clock::now() - last_ < kOutputInterval) return;
  update_now();
}

void WatchOutputs::finish() {
  const std::lock_guard lock(mutex_);
  update_now();
}

void WatchOutputs::update_now() {
  if (failed_ || (!options_.tensorboard && options_.open_metrics.empty())) return;
  try {
    std::error_code ignored;
    if (!runs_ && !std::filesystem::is_directory(folder_, ignored)) return;  // no run has begun
    if (runs_) {
      runs_->update();
    } else {
      runs_.emplace(folder_);
    }
    write(*runs_);
  } catch (const ConfigError& error) {
    failed_ = true;
    std::cerr << "droptest: " << error.what() << "; the files for other programs stay as they are, training goes on\n";
  }
  last_ = std::chrono::steady_clock::now();
}

void WatchOutputs::write(const experiments::WatchedRuns& runs) {
  if (options_.tensorboard) tensorboard_.update(runs);
  if (!options_.open_metrics.empty()) {
    experiments::write_file_atomically(options_.open_metrics, experiments::open_metrics_text(runs));
  }
}

}  // namespace droptest::cli
