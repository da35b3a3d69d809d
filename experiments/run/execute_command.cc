// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/execute_command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/rendezvous/tcp_connection.h"
#include "experiments/data/file_version.h"
#include "experiments/files/atomic_file.h"
#include "experiments/process/last_words.h"
#include "experiments/process/program_output.h"
#include "experiments/process/program_tree.h"
#include "experiments/records/loss_statistics_record.h"
#include "experiments/records/metrics_tail.h"
#include "experiments/records/provenance.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/resolve_command.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;
using SystemClock = std::chrono::system_clock;

constexpr std::chrono::milliseconds kProgramPollInterval{50};
constexpr std::chrono::milliseconds kRestPatience{
    5000};  ///< the time in which processes that the program leaves behind can end
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

/// The start of the program. Its variables have everything that it needs: a folder with a network, its seeds, its
/// settings, and an address for its ranks that no other run has.
ChildProcess::Options program_of(const ResolvedRun& run, const std::string& folder) {
  const int port = comm::unused_port();
  const CommandConfig& command = *run.config.command;
  const std::string network = folder + "/network.json";
  write_file_atomically(network, network_of_command(run, folder).dump(2) + "\n");
  ChildProcess::Options program;
  program.arguments = with_values(command.words, command_values(command, run.config.seeds, port, folder), "/command");
  const std::string& name = program.arguments.front();
  const bool is_path = name.find('/') != std::string::npos;
  if (is_path && ::access(name.c_str(), X_OK) != 0) {
    throw ConfigError("/command/0: got " + comm::quote_json(name) +
                      ", which is no program here: " + std::generic_category().message(errno));
  }
  if (!is_path) (void)path_of_program(name);
  program.log = folder + "/program.log";
  program.environment = {{"DROPTEST_NETWORK", network},
                         {kRunFolderVariable, folder},
                         {"DROPTEST_WEIGHTS_SEED", std::to_string(run.config.seeds.weights)},
                         {"DROPTEST_DATA_SEED", std::to_string(run.config.seeds.data)},
                         {"DROPTEST_NETWORK_SEED", std::to_string(run.config.seeds.network)},
                         {"DROPTEST_SETTINGS", run.spec["settings"].dump()},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", std::to_string(port)},
                         {"PET_MASTER_PORT", std::to_string(port)}};  // the variable of torchrun
  program.hidden_variables = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  return program;
}

/// The counts that the program's ranks have written. Throws: CommError if there are none, if they are those of another
/// network, or if they have no packet that could be lost: then nothing shows that the run had loss.
json counts_of(const ResolvedRun& run, const RunDirectory& directory) {
  constexpr const char* kWant =
      "want droptest.Network() with droptest.torch.attach(model), or another layer of droptest in the program, on the "
      "network that DROPTEST_NETWORK names";
  json counts;
  try {
    counts = comm::load_json(directory.loss_statistics());
  } catch (const ConfigError& error) {
    throw CommError("the program ended with exit code 0, but its ranks have written no counts of the network (" +
                    std::string(error.what()) + "), so nothing says that it lost packets; " + kWant);
  }
  const json network = counts.value("network", json::object());
  const auto refuse = [&](const std::string& what) {
    throw CommError(directory.loss_statistics() + ": /network" + what + " than that of this run; " + kWant);
  };
  if (network.value("seed", json()) != run.config.seeds.network) refuse("/seed: got another seed");
  const json sections = network.value("classes", json::object());
  for (const auto& [name, section] : sections.items()) {
    if (run.spec["network"]["classes"].value(name, json()) != section) refuse("/classes/" + name + ": got another one");
  }
  if (network.value("digest", "") != network_digest_of(run)) {
    refuse("/digest: got that of other rules, or of another version of droptest,");
  }
  const json classes = counts.value("classes", json::object());
  bool can_lose = false;
  std::uint64_t packets = 0;  // packets of halves that can lose
  for (const auto& [name, section] : run.spec["network"]["classes"].items()) {
    const comm::ClassNetwork& of_class = *run.config.network.of(sim::traffic_class_from_name(name));
    const json halves = classes.value(name, json::object()).value("halves", json::object());
    for (std::size_t half = 0; half < kHalfNames.size(); ++half) {
      if (!comm::can_lose(half_of(of_class, half))) continue;
      can_lose = true;
      packets += halves.value(kHalfNames[half], json::object()).value("packets", std::uint64_t{0});
    }
  }
  if (can_lose && packets == 0) {
    const json exempt = counts.value("exempt", json::object());
    throw CommError("the program ended with exit code 0, but it has sent no packet that can be lost" +
                    (exempt.empty() ? "" : " (exempt calls: " + exempt.dump() + ")") +
                    ", so this is no run with loss; " + kWant +
                    "; a program that has gone on from a checkpoint and had nothing left to do has to begin anew");
  }
  return counts;
}

/// Ends the last line of a program that has ended, since it writes no more.
void end_last_line(const std::string& path) {
  std::ifstream file(path, std::ios::ate | std::ios::binary);
  if (!file || file.tellg() == std::streampos(0)) return;
  file.seekg(-1, std::ios::end);
  if (file.get() != '\n') std::ofstream(path, std::ios::app) << "\n";
}

std::uint64_t count_of_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::istreambuf_iterator<char> begin(file);
  return static_cast<std::uint64_t>(std::count(begin, std::istreambuf_iterator<char>(), '\n'));
}

/// Writes the lines that count, unless the file has as many.
void write_lines(const std::string& path, const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) text += line.dump() + "\n";
  if (count_of_lines(path) != lines.size()) write_file_atomically(path, text);
}

/// The warnings about the program's records.
std::vector<Warning> warnings_about(const json& counts, const ProgramOutcome& outcome, bool has_lines) {
  std::vector<Warning> warnings;
  const auto warn = [&warnings](const std::string& message) {
    warnings.push_back({"/command", message, Warning::About::kRun});
  };
  if (counts.value("classes", json::object()).empty()) {
    warn("the program has sent no packet through its network, which loses none");
  }
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

std::vector<json> lines_that_count(const std::string& metrics_file, std::uint64_t earlier_lines) {
  std::vector<json> lines;
  std::ifstream file(metrics_file);
  std::uint64_t number = 0;
  bool has_begun = earlier_lines == 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    const bool is_earlier = number <= earlier_lines;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
    std::string wrong;
    if (!line.is_object()) {
      wrong = "got " + comm::quote_json(text, 80) +
              ", want an object of JSON, which has no NaN and no Infinity: write null";
    } else if (const auto violations = schema_of(SchemaKind::kMetrics).check(line); !violations.empty()) {
      wrong = violations.front().pointer + ": " + violations.front().message;
    }
    if (!wrong.empty() && is_earlier) continue;
    if (!wrong.empty()) throw ConfigError(metrics_file + ": line " + std::to_string(number) + ": " + wrong);
    const bool begins = !is_earlier && !std::exchange(has_begun, true);
    if (begins || (!lines.empty() && line["step"] < lines.back()["step"])) {
      while (!lines.empty() && lines.back()["step"] >= line["step"]) lines.pop_back();
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

ProgramOutcome outcome_of(const std::vector<json>& lines) {
  ProgramOutcome outcome;
  std::vector<double> train_losses;
  std::optional<double> last_validation;
  for (const json& line : lines) {
    outcome.steps = line["step"].get<std::uint64_t>();
    outcome.seconds = line["seconds"].get<double>();
    if (line.contains("tokens")) outcome.tokens = line["tokens"].get<std::uint64_t>();
    for (const char* name : {"train_loss", "validation_loss"}) {
      if (line.contains(name) && line[name].is_null() && !outcome.diverged_step) outcome.diverged_step = outcome.steps;
    }
    const auto value_of = [](const json& loss) { return loss.is_null() ? std::nan("") : loss.get<double>(); };
    if (line.contains("train_loss")) train_losses.push_back(value_of(line["train_loss"]));
    if (!line.contains("validation_loss")) continue;
    last_validation = value_of(line["validation_loss"]);
    const double best = outcome.validation_best_loss.value_or(*last_validation);
    if (std::isfinite(*last_validation)) outcome.validation_best_loss = std::min(best, *last_validation);
  }
  if (last_validation && std::isfinite(*last_validation)) outcome.validation_final_loss = last_validation;
  const std::size_t count = std::min(train_losses.size(), kLinesOfFinalLoss);
  if (count > 0) {
    const double sum =
        std::accumulate(train_losses.end() - static_cast<std::ptrdiff_t>(count), train_losses.end(), 0.0);
    if (std::isfinite(sum)) outcome.train_final_loss = sum / static_cast<double>(count);
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
  end_last_line(directory.metrics());
  const std::optional<FileVersion> old_lines = version_of(directory.metrics());
  MetricsTail metrics(directory.metrics());
  std::uint64_t earlier_lines = count_of_lines(directory.metrics());  // the lines of an earlier attempt
  metrics.update([](const NumberedLine&) {});
  const std::uint64_t earlier_file = metrics.files();
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
  end_last_line(directory.metrics());
  metrics.update([&](const NumberedLine& line) { options.on_line(line.value); });
  if (!status->succeeded()) {
    if (options.stop_requested()) throw StoppedError(directory.path + ": stopped before its end");
    const std::string words = last_error(log_of(directory));
    throw CommError("the program " + status->describe() +
                    (words.empty() ? status->code == 127 ? ": it could not be started" : "" : ": " + words) +
                    "; its output is in " + log_of(directory));
  }
  const json counts = counts_of(run, directory);
  const std::optional<FileVersion> lines = version_of(directory.metrics());
  const bool has_lines = lines && lines != old_lines;
  if (!has_lines) std::filesystem::remove(directory.metrics());
  if (metrics.files() != earlier_file) earlier_lines = 0;
  const std::vector<json> counted = lines_that_count(directory.metrics(), earlier_lines);
  if (has_lines) write_lines(directory.metrics(), counted);
  const ProgramOutcome outcome = outcome_of(counted);
  RunSummary summary;
  summary.status = outcome.diverged_step ? RunStatus::kDiverged : RunStatus::kCompleted;
  summary.diverged_step = outcome.diverged_step;
  summary.point = options.point;
  take_outcome(outcome, summary);
  if (outcome.seconds == 0) summary.seconds = std::chrono::duration<double>(SystemClock::now() - started).count();
  summary.provenance = build_provenance();
  summary.provenance.libraries.clear();  // the libraries of this program; those of the other one are not known
  summary.provenance.started = utc_text(started);
  summary.provenance.finished = utc_text(SystemClock::now());
  ResolvedRun told = run;
  const std::vector<Warning> more = warnings_about(counts, outcome, has_lines);
  told.warnings.insert(told.warnings.end(), more.begin(), more.end());
  for (const Warning& one : more) options.say_problem("warning: " + one.message);
  const json record = summary_json(told, summary);
  write_summary_record(directory, record);
  return record;
}

}  // namespace droptest::experiments
