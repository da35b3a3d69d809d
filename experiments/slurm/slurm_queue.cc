// SPDX-License-Identifier: Apache-2.0
#include "experiments/slurm/slurm_queue.h"

#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>

#include "experiments/process/program_output.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kBlank) - first + 1));
}

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

ProgramOutput run_slurm_program(const std::vector<std::string>& arguments) {
  try {
    return run_program(arguments);
  } catch (const ConfigError& error) {
    throw ConfigError(std::string(error.what()) +
                      "; --slurm needs Slurm's commands in PATH: use it on a machine from which jobs are submitted");
  }
}

template <class Error = ConfigError>
[[noreturn]] void fail_with_words(const std::vector<std::string>& arguments, const ProgramOutput& ended,
                                  const std::string& advice) {
  std::string command;
  for (const std::string& word : arguments) command += (command.empty() ? "" : " ") + word;
  const std::string words = trimmed(ended.errors.empty() ? ended.output : ended.errors);
  throw Error(arguments[0] + " ended with exit code " + std::to_string(ended.exit_code) + ": " +
              (words.empty() ? "no message" : words) + advice + "\nthe command was: " + command);
}

}  // namespace

std::string submit_batch(const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> command = {"sbatch", "--parsable"};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back(script);
  const ProgramOutput ended = run_slurm_program(command);
  // The request may have come through if only the answer was lost. Source: slurm/slurm_errno.h and its texts.
  const bool is_lost = ended.exit_code > 128 || ended.errors.find("timed out") != std::string::npos ||
                       ended.errors.find("Zero Bytes were transmitted or received") != std::string::npos;
  if (is_lost) fail_with_words<UnconfirmedError>(command, ended, "");
  if (!ended.succeeded()) {
    fail_with_words(command, ended,
                    "; options of sbatch follow --, as in: droptest sweep SPEC --slurm -- --partition=gpu");
  }
  const std::string id = trimmed(std::string_view(ended.output).substr(0, ended.output.find(';')));
  if (!number_in(id)) throw UnconfirmedError("sbatch --parsable: got \"" + trimmed(ended.output) + "\", want a job id");
  return id;
}

std::optional<std::string> job_of_script(const std::string& script) {
  const std::vector<std::string> command = {"squeue", "--me", "--noheader", "--format=%F %o"};
  const ProgramOutput ended = run_slurm_program(command);
  if (!ended.succeeded()) fail_with_words(command, ended, "; without it nobody knows whether Slurm took " + script);
  const std::string whole = std::filesystem::absolute(script).lexically_normal().string();
  std::istringstream lines(ended.output);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    const std::string path = trimmed(line.substr(blank + 1));
    if (path == script || std::filesystem::path(path).lexically_normal() == whole) return line.substr(0, blank);
  }
  return std::nullopt;
}

std::set<ArrayTask> live_tasks(const std::set<std::string>& job_ids) {
  if (job_ids.empty()) return {};
  std::string list;
  for (const std::string& id : job_ids) list += (list.empty() ? "" : ",") + id;
  const std::vector<std::string> command = {"squeue", "--noheader", "--array", "--format=%F_%K", "--jobs=" + list};
  const ProgramOutput ended = run_slurm_program(command);
  if (ended.succeeded()) return tasks_of_listing(ended.output);
  // Slurm forgets ended jobs after MinJobAge, and then refuses a list of nothing else.
  if (ended.errors.find("Invalid job id") != std::string::npos) return {};
  fail_with_words(command, ended, "; without it nobody knows which runs are in jobs already");
}

std::uint64_t most_tasks_of_an_array() {
  const std::vector<std::string> command = {"scontrol", "show", "config"};
  const ProgramOutput ended = run_slurm_program(command);
  if (!ended.succeeded()) fail_with_words(command, ended, "");
  return most_tasks_in_configuration(ended.output);
}

std::set<ArrayTask> tasks_of_listing(std::string_view listing) {
  std::set<ArrayTask> tasks;
  std::istringstream lines{std::string(listing)};
  for (std::string line; std::getline(lines, line);) {
    const std::string text = trimmed(line);
    const std::size_t mark = text.find('_');
    if (mark == std::string::npos) continue;
    const std::optional<std::uint64_t> number = number_in(std::string_view(text).substr(mark + 1));
    if (number) tasks.insert({text.substr(0, mark), *number});
  }
  return tasks;
}

std::uint64_t most_tasks_in_configuration(std::string_view configuration) {
  constexpr std::string_view kName = "MaxArraySize";
  std::istringstream lines{std::string(configuration)};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos || trimmed(std::string_view(line).substr(0, equals)) != kName) continue;
    const std::string value = trimmed(std::string_view(line).substr(equals + 1));
    const std::optional<std::uint64_t> size = number_in(value);
    if (!size || *size < 2) {
      throw ConfigError("scontrol show config: MaxArraySize: got \"" + value +
                        "\", want at least 2: this cluster has no job arrays");
    }
    return *size - 1;  // indices end before MaxArraySize, and ours begin at 1
  }
  throw ConfigError("scontrol show config: got no MaxArraySize, want the limit of job arrays");
}

}  // namespace droptest::experiments
