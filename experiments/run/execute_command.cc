// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/execute_command.h"

#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "comm/rendezvous/tcp_connection.h"
#include "experiments/data/file_version.h"
#include "experiments/files/atomic_file.h"
#include "experiments/process/last_words.h"
#include "experiments/process/program_tree.h"
#include "experiments/records/metrics_tail.h"
#include "experiments/records/provenance.h"
#include "experiments/spec/resolve_command.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;
using SystemClock = std::chrono::system_clock;

constexpr std::chrono::milliseconds kProgramPollInterval{50};
constexpr std::chrono::milliseconds kRestPatience{
    5000};  ///< of processes that the program leaves, to end by themselves
constexpr std::size_t kLinesOfFinalLoss = 10;

std::string log_of(const RunDirectory& directory) { return directory.path + "/program.log"; }

/// Nothing of an earlier attempt is taken for a record of this one. Its metrics stay: a program that goes on from a
/// checkpoint of its own adds to them.
void start_folder(const ResolvedRun& run, const RunDirectory& directory) {
  make_directories(directory.path);
  for (const std::string& stale : {directory.summary(), directory.loss_statistics(), directory.path + "/ranks"}) {
    std::error_code error;
    std::filesystem::remove_all(stale, error);
    if (error) throw ConfigError(stale + ": cannot remove: " + error.message());
  }
  write_spec_record(directory, run);
}

/// Its own variables are all that the program needs: a folder with a network, its seeds, its settings, and an address
/// for its ranks that no other run has.
ChildProcess::Options program_of(const ResolvedRun& run, const std::string& folder) {
  const int port = comm::unused_port();
  const CommandConfig& command = *run.config.command;
  const std::string network = folder + "/network.json";
  write_file_atomically(network, network_of_command(run, folder).dump(2) + "\n");
  ChildProcess::Options program;
  program.arguments = with_values(command.words, command_values(command, run.config.seeds, port, folder), "/command");
  program.log = folder + "/program.log";
  program.environment = {{"DROPTEST_NETWORK", network},
                         {"DROPTEST_RUN_FOLDER", folder},
                         {"DROPTEST_WEIGHTS_SEED", std::to_string(run.config.seeds.weights)},
                         {"DROPTEST_DATA_SEED", std::to_string(run.config.seeds.data)},
                         {"DROPTEST_NETWORK_SEED", std::to_string(run.config.seeds.network)},
                         {"DROPTEST_SETTINGS", run.spec["settings"].dump()},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", std::to_string(port)},
                         {"PET_MASTER_PORT", std::to_string(port)}};  // torchrun's
  program.hidden_variables = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  return program;
}

/// The counts that the program's ranks have written. Throws: CommError where there are none, or of another network.
json counts_of(const ResolvedRun& run, const RunDirectory& directory) {
  json counts;
  try {
    counts = comm::load_json(directory.loss_statistics());
  } catch (const ConfigError& error) {
    throw CommError("the program ended with exit code 0, but its ranks have written no counts of the network (" +
                    std::string(error.what()) +
                    "), so nothing says that it lost packets; want droptest.Network(), droptest.torch.attach(model) or "
                    "another layer of droptest in the program, which take the network that DROPTEST_NETWORK names");
  }
  const json network = counts.value("network", json::object());
  const auto refuse = [&](const std::string& what) {
    throw CommError(directory.loss_statistics() + ": /network" + what +
                    " than the one of this run, which the program finds in the file that DROPTEST_NETWORK names");
  };
  if (network.value("seed", json()) != run.config.seeds.network) refuse("/seed: got another seed");
  const json classes = network.value("classes", json::object());
  for (const auto& [name, section] : classes.items()) {
    if (run.spec["network"]["classes"].value(name, json()) != section) refuse("/classes/" + name + ": got another one");
  }
  return counts;
}

/// About the program's records.
std::vector<Warning> warnings_about(const json& counts, const ProgramOutcome& outcome, bool has_lines) {
  std::vector<Warning> warnings;
  const auto warn = [&warnings](const std::string& message) {
    warnings.push_back({"/command", message, Warning::About::kRun});
  };
  const json missing = counts.value("/ranks/missing"_json_pointer, json::array());
  if (!missing.empty()) warn("ranks " + missing.dump() + " have written no counts of their packets");
  if (!has_lines) {
    warn("the program has written no metrics.jsonl, so the run has no curves; network.log(step, training_loss=...)");
  } else if (!outcome.validation_final_loss && !outcome.diverged_step) {
    warn("no line of metrics.jsonl has a validation_loss, by which runs are compared");
  }
  return warnings;
}

}  // namespace

ProgramOutcome outcome_of_lines(const std::string& metrics_file) {
  ProgramOutcome outcome;
  std::deque<double> last_losses;
  bool last_is_finite = false;
  MetricsTail lines(metrics_file);
  lines.update([&](const NumberedLine& one) {
    const json& line = one.value;
    const auto step = line.find("step");
    if (step == line.end() || !step->is_number_unsigned()) {
      throw ConfigError(metrics_file + ": line " + std::to_string(one.number) + ": /step: got " +
                        (step == line.end() ? "nothing" : comm::quote_json(*step)) + ", want an integer of at least 0");
    }
    outcome.steps = step->get<std::uint64_t>();
    if (const json tokens = line.value("tokens", json()); tokens.is_number_unsigned()) outcome.tokens = tokens;
    if (const json seconds = line.value("seconds", json()); seconds.is_number()) outcome.seconds = seconds;
    for (const char* name : {"train_loss", "validation_loss"}) {
      if (line.contains(name) && !line[name].is_number() && !outcome.diverged_step)
        outcome.diverged_step = outcome.steps;
    }
    if (const auto loss = line.find("train_loss"); loss != line.end()) {
      last_losses.push_back(loss->is_number() ? loss->get<double>() : std::nan(""));
      if (last_losses.size() > kLinesOfFinalLoss) last_losses.pop_front();
    }
    if (const auto loss = line.find("validation_loss"); loss != line.end()) {
      last_is_finite = loss->is_number();
      if (!last_is_finite) return;
      outcome.validation_final_loss = loss->get<double>();
      outcome.validation_best_loss = std::min(*outcome.validation_final_loss,
                                              outcome.validation_best_loss.value_or(*outcome.validation_final_loss));
    }
  });
  if (!lines.bad_line().empty()) throw ConfigError(metrics_file + ": " + lines.bad_line());
  if (!last_is_finite) outcome.validation_final_loss.reset();
  if (!last_losses.empty()) {
    const double mean =
        std::accumulate(last_losses.begin(), last_losses.end(), 0.0) / static_cast<double>(last_losses.size());
    if (std::isfinite(mean)) outcome.train_final_loss = mean;
  }
  return outcome;
}

void take_outcome(const ProgramOutcome& outcome, RunSummary& summary) {
  summary.steps = outcome.steps;
  summary.tokens = outcome.tokens;
  summary.train_final_loss = outcome.train_final_loss;
  summary.validation_final_loss = outcome.validation_final_loss;
  summary.validation_best_loss = outcome.validation_best_loss;
  summary.seconds = outcome.seconds;
  summary.tokens_per_second = outcome.seconds > 0 && outcome.tokens > 0
                                  ? static_cast<double>(outcome.tokens) / outcome.seconds
                                  : std::nan("");  // not known
}

json execute_command(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options) {
  start_folder(run, directory);
  const std::string folder = std::filesystem::absolute(directory.path).lexically_normal().string();
  const SystemClock::time_point started = SystemClock::now();
  const std::optional<FileVersion> old_lines = version_of(directory.metrics());
  MetricsTail metrics(directory.metrics());
  metrics.update([](const NumberedLine&) {});  // of an attempt before
  ProgramTree program(program_of(run, folder));
  std::optional<ExitStatus> status;
  while (!status) {
    std::this_thread::sleep_for(kProgramPollInterval);
    status = program.poll();
    metrics.update([&](const NumberedLine& line) { options.on_line(line.value); });
    if (status || !options.stop_requested()) continue;
    program.stop(options.program_grace);
    throw StoppedError(directory.path + ": stopped before its end");
  }
  program.end_rest(kRestPatience, options.program_grace);
  metrics.update([&](const NumberedLine& line) { options.on_line(line.value); });
  if (!status->succeeded()) {
    if (options.stop_requested()) throw StoppedError(directory.path + ": stopped before its end");
    const std::string words = last_error(log_of(directory));
    throw CommError("the program " + status->describe() + (words.empty() ? "" : ": " + words) + "; its output is in " +
                    log_of(directory));
  }
  const json counts = counts_of(run, directory);
  const std::optional<FileVersion> lines = version_of(directory.metrics());
  const bool has_lines = lines && lines != old_lines;
  if (!has_lines) std::filesystem::remove(directory.metrics());
  const ProgramOutcome outcome = outcome_of_lines(directory.metrics());
  RunSummary summary;
  summary.status = outcome.diverged_step ? RunStatus::kDiverged : RunStatus::kCompleted;
  summary.diverged_step = outcome.diverged_step;
  summary.point = options.point;
  take_outcome(outcome, summary);
  if (outcome.seconds == 0) summary.seconds = std::chrono::duration<double>(SystemClock::now() - started).count();
  summary.provenance = build_provenance();
  summary.provenance.libraries.clear();  // of this program; those of the other one are not known
  summary.provenance.started = utc_text(started);
  summary.provenance.finished = utc_text(SystemClock::now());
  ResolvedRun told = run;
  const std::vector<Warning> more = warnings_about(counts, outcome, has_lines);
  told.warnings.insert(told.warnings.end(), more.begin(), more.end());
  const json record = summary_json(told, summary);
  write_summary_record(directory, record);
  return record;
}

}  // namespace droptest::experiments
