// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/rank_processes.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "experiments/files/atomic_file.h"
#include "experiments/process/child_process.h"
#include "experiments/process/last_words.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr std::chrono::milliseconds kRankPollInterval{10};

/// A rank's failure; a kill is a cause, an exit code may be the echo of a peer's end.
struct Failure {
  std::size_t rank;
  ExitStatus status;
};

/// The failures so far, kills first.
std::optional<Failure> first_failure(std::vector<ChildProcess>& ranks) {
  std::optional<Failure> found;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::optional<ExitStatus> status = ranks[r].poll();
    if (!status || status->succeeded()) continue;
    if (!found || (found->status.signal == 0 && status->signal != 0)) found = Failure{r, *status};
  }
  return found;
}

bool all_ended(std::vector<ChildProcess>& ranks) {
  bool all = true;
  for (ChildProcess& rank : ranks) all = rank.poll().has_value() && all;
  return all;
}

/// A rank that is stopped reports nothing, so it is not waited for.
bool all_ended_or_stopped(std::vector<ChildProcess>& ranks) {
  bool all = true;
  for (ChildProcess& rank : ranks) all = (rank.poll().has_value() || rank.is_stopped()) && all;
  return all;
}

/// The lines of a log as they come.
class LogTail {
 public:
  explicit LogTail(std::string path) : path_(std::move(path)) {}
  void pass(const std::function<void(const std::string&)>& on_line) {
    std::ifstream file(path_, std::ios::binary);
    file.seekg(offset_);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      offset_ += static_cast<std::streamoff>(line.size()) + 1;
      on_line(line);
    }
  }

 private:
  std::string path_;
  std::streamoff offset_ = 0;
};

}  // namespace

void run_rank_processes(const RankProcessesOptions& options) {
  make_directories(options.log_directory);
  const auto log = [&](std::size_t rank) { return options.log_directory + "/rank_" + std::to_string(rank) + ".log"; };

  // The variables that torchrun sets: a rank need not know who started it.
  std::vector<SpokenWords> spoken(static_cast<std::size_t>(options.world_size));
  std::vector<ChildProcess> ranks;
  for (int r = 0; r < options.world_size; ++r) {
    std::map<std::string, std::string> environment = {
        {"RANK", std::to_string(r)},
        {"WORLD_SIZE", std::to_string(options.world_size)},
        {"LOCAL_RANK", std::to_string(r)},
        {"LOCAL_WORLD_SIZE", std::to_string(options.world_size)},
        {"TORCHELASTIC_RUN_ID", options.launch_id},
        {kSpokenWordsVariable, spoken[static_cast<std::size_t>(r)].path()}};
    environment.insert(options.environment.begin(), options.environment.end());
    ranks.push_back(
        ChildProcess::start({.arguments = options.command,
                             .environment = std::move(environment),
                             .log = log(static_cast<std::size_t>(r)),
                             .hidden_variables = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
                                                  "TORCHELASTIC_USE_AGENT_STORE"},
                             .kept_descriptor = options.kept_descriptor}));
  }
  std::optional<Failure> failure;
  bool told = false;
  LogTail root(log(0));
  const auto remove_logs = [&options] {
    std::error_code ignored;
    std::filesystem::remove_all(options.log_directory, ignored);
  };
  try {
    while (!(failure = first_failure(ranks)) && !all_ended(ranks)) {
      if (options.while_running() == RankProcessesOptions::Next::kTellRoot && !std::exchange(told, true)) {
        ranks.front().tell(SIGTERM);
      }
      root.pass(options.on_line);
      std::this_thread::sleep_for(kRankPollInterval);
    }
    root.pass(options.on_line);
  } catch (...) {
    ranks.clear();
    remove_logs();
    throw;
  }
  if (!failure) return remove_logs();

  const auto deadline = std::chrono::steady_clock::now() + options.grace;
  while (!all_ended_or_stopped(ranks) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(kRankPollInterval);
  std::string stopped;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].poll()) continue;
    stopped += (stopped.empty() ? "" : ", ") + std::to_string(r);
    ranks[r].stop(std::chrono::milliseconds(ranks[r].is_stopped() ? 0 : 500));
  }
  root.pass(options.on_line);
  for (std::size_t r = 1; r < ranks.size(); ++r) LogTail(log(r)).pass(options.on_line);
  std::vector<ExitStatus> statuses;
  for (ChildProcess& rank : ranks) statuses.push_back(rank.poll().value_or(ExitStatus{.code = 0, .signal = SIGKILL}));
  const auto tells = [&options](const ExitStatus& status) {
    return status.signal == 0 && !status.succeeded() && status.code == options.telling_code;
  };
  if (const auto telling = std::find_if(statuses.begin(), statuses.end(), tells); telling != statuses.end()) {
    failure = Failure{static_cast<std::size_t>(telling - statuses.begin()), *telling};
  }
  std::string words = last_words(spoken[failure->rank].path());
  if (words.empty()) words = last_words(log(failure->rank));
  throw RankFailure("rank " + std::to_string(failure->rank) + " of " + std::to_string(options.world_size) + " " +
                        failure->status.describe() + (words.empty() ? "" : ": " + words) +
                        (stopped.empty() ? "" : "; ranks stopped since they did not end: " + stopped) +
                        " (logs: " + options.log_directory + ")",
                    failure->status, std::move(statuses));
}

}  // namespace droptest::experiments
