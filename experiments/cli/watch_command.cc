// SPDX-License-Identifier: Apache-2.0
// droptest watch
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "experiments/cli/commands.h"
#include "experiments/cli/number_options.h"
#include "experiments/cli/stop_signal.h"
#include "experiments/cli/watch_frame.h"
#include "experiments/cli/watch_outputs.h"
#include "experiments/watch/watched_runs.h"

namespace droptest::cli {
namespace {

struct WatchOptions {
  std::string folder;
  bool once = false;
  double interval_seconds = 2;
  WatchOutputOptions outputs;
};

/// Whether nothing can change any more: there are runs, and every one has its result.
bool all_ended(const experiments::WatchedRuns& runs) {
  if (runs.runs().empty()) return false;
  for (const experiments::WatchedRun* run : runs.runs()) {
    if (!run->has_ended()) return false;
  }
  return true;
}

void sleep_while_not_stopped(double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!stop_requested() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

int watch(const WatchOptions& options) {
  experiments::WatchedRuns runs(options.folder);
  WatchOutputs outputs(options.outputs, options.folder, experiments::tensorboard_folder(options.folder));
  outputs.write(runs);
  constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  if (options.once || ::isatty(STDOUT_FILENO) == 0) {
    std::cout << watch_frame(runs, kNoLimit, kNoLimit);
    return kExitSuccess;
  }
  catch_stop_signals();
  for (; !stop_requested(); runs.update(), outputs.write(runs)) {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0 && size.ws_row != 0;
    const std::size_t columns = known ? size.ws_col : 80;
    const std::size_t rows = known ? size.ws_row : 24;
    // The cursor goes home, and each line erases its rest, because a screen that is erased first would flicker.
    std::string frame;
    for (const char c : watch_frame(runs, columns - 1, rows - 1)) frame += c == '\n' ? "\x1b[K\n" : std::string(1, c);
    std::cout << "\x1b[H" << frame << "\x1b[J" << std::flush;
    if (all_ended(runs)) return kExitSuccess;
    sleep_while_not_stopped(options.interval_seconds);
  }
  return kExitInterrupted;
}

}  // namespace

void add_watch_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("watch", "Show the progress of runs, from their records");
  const auto options = std::make_shared<WatchOptions>();  // shared by CLI11's bindings and the action
  command->add_option("DIR", options->folder, "Folder of an experiment, of a run, or of several experiments")
      ->required();
  command->add_flag("--once", options->once, "Print one frame; the default where the output is no terminal");
  add_number(*command, "--interval", options->interval_seconds, "Seconds between frames", 0.1, 3600)
      ->capture_default_str();
  add_watch_output_options(*command, options->outputs);
  command->footer(
      "Reads only record files, so the runs may be those of another machine or of a cluster, in a shared folder.\n"
      "Waits for the first run, and ends when all runs have ended.\n\n"
      "Examples:\n"
      "  droptest watch results/quickstart\n"
      "  droptest watch results --once\n"
      "  droptest watch /shared/results/big --tensorboard --openmetrics /var/lib/node_exporter/droptest.prom");
  command->callback([options, &chosen] { chosen = [options] { return watch(*options); }; });
}

}  // namespace droptest::cli
