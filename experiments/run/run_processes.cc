// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/run_processes.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/rendezvous/tcp_connection.h"
#include "experiments/checkpoint/rescue.h"
#include "experiments/files/atomic_file.h"
#include "experiments/process/rank_processes.h"
#include "experiments/run/attempt_series.h"
#include "experiments/run/line_relay.h"
#include "experiments/run/training_ranks.h"
#include "experiments/spec/recorded_files.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// Removes a folder at the end of its scope.
class RemovedAtEnd {
 public:
  explicit RemovedAtEnd(std::string path) : path_(std::move(path)) {}
  ~RemovedAtEnd() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  RemovedAtEnd(const RemovedAtEnd&) = delete;
  RemovedAtEnd& operator=(const RemovedAtEnd&) = delete;

 private:
  std::string path_;
};

/// Turns the state that ranks left when another one died into a checkpoint. If it cannot, the last checkpoint stands.
void take_rescue(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options) {
  if (!run.config.elastic || !run.config.checkpoint) return;
  try {
    (void)complete_rescue(CheckpointFolder(directory.checkpoints()), run.run_id, run.config.checkpoint->keep);
  } catch (const ConfigError& error) {
    options.say_problem(std::string("state of the ranks that live: ") + error.what());
  }
}

/// The hashes of the run's files as they are now, for its ranks. Files that have changed are read here, while no rank
/// waits. Rank 0 reports their errors.
std::string hashes_of_now(const ResolvedRun& run, FileHashes& files) {
  const std::vector<std::string> paths = recorded_files(run.spec);
  for (const std::string& path : paths) {
    try {
      (void)files.of(path);
    } catch (const ConfigError&) {
      continue;
    }
  }
  return files.known_of(paths).dump();
}

/// The options of every attempt.
RankProcessesOptions rank_options(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options,
                                  const SharedLock& lock) {
  RankProcessesOptions ranks;
  ranks.command = options.worker_command;
  ranks.command.insert(ranks.command.end(),
                       {directory.path, "--point", options.point.dump(), "--labels", run.labels.dump(), "--warnings",
                        warnings_json(run.warnings).dump(), "--locked"});
  ranks.telling_code = options.user_error_code;
  if (lock) ranks.kept_descriptor = lock->descriptor();
  if (const auto& named = run.config.backend.rendezvous; named && named->kind == comm::Rendezvous::Kind::kTcp) {
    if (named->host.empty()) ranks.environment["MASTER_ADDR"] = "127.0.0.1";
    if (named->port == 0) ranks.environment["MASTER_PORT"] = std::to_string(comm::unused_port());
  }
  ranks.log_directory = directory.path + "/ranks";
  // Ranks leave their state in this time.
  if (run.config.elastic) ranks.grace = std::max(ranks.grace, run.config.backend.timeout);
  ranks.on_line = [&options](const std::string& line) {
    constexpr std::string_view kProblem = "droptest: ";
    if (!line.starts_with(kProblem) || line.starts_with("droptest: error: ")) return;
    options.say_problem(line.substr(kProblem.size()));
  };
  return ranks;
}

void run_attempt(RankProcessesOptions ranks, const ResolvedRun& run, const ExecuteOptions& options,
                 const AttemptSeries& attempts) {
  ranks.world_size = attempts.ranks();
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  ranks.launch_id = std::to_string(::getpid()) + "-" + std::to_string(now);
  ranks.command.insert(ranks.command.end(), {"--states-not-left", std::to_string(attempts.states_not_left())});
  if (options.files != nullptr) {
    ranks.command.insert(ranks.command.end(), {"--files", hashes_of_now(run, *options.files)});
  }
  run_rank_processes(ranks);
}

void wait_for(std::chrono::milliseconds pause, const RunDirectory& directory, const ExecuteOptions& options) {
  const auto until = std::chrono::steady_clock::now() + pause;
  while (std::chrono::steady_clock::now() < until) {
    if (options.stop_requested()) throw_stopped(directory);
    std::this_thread::sleep_for(
        std::min<std::chrono::steady_clock::duration>(kStopPollInterval, until - std::chrono::steady_clock::now()));
  }
}

}  // namespace

nlohmann::json run_processes(const ResolvedRun& run, const RunDirectory& directory, const ExecuteOptions& options,
                             const SharedLock& lock) {
  DROPTEST_CHECK(!options.worker_command.empty(), "no command to start ranks with");
  make_directories(directory.path);
  write_spec_record(directory, run);
  RankProcessesOptions ranks = rank_options(run, directory, options, lock);
  const RemovedAtEnd rendezvous(default_rendezvous(directory));
  if (options.resume == CheckpointPlace::Resume::kNewest) take_rescue(run, directory, options);
  LineRelay lines(directory.metrics(), options.on_line);
  ranks.while_running = [&] {
    lines.pass();
    if (!options.stop_requested()) return RankProcessesOptions::Next::kGoOn;
    if (!stops_itself(run.config)) throw_stopped(directory);
    return RankProcessesOptions::Next::kTellRoot;
  };
  const CheckpointFolder checkpoints(directory.checkpoints());
  const auto newest = [&checkpoints] {
    const std::vector<std::uint64_t> steps = checkpoints.steps();
    return steps.empty() ? std::uint64_t{0} : steps.back();
  };
  AttemptSeries attempts(run.config, newest(), options.user_error_code, checkpoints.rescue());
  for (bool goes_on = true; goes_on;) {
    lines.begin_attempt();
    try {
      run_attempt(ranks, run, options, attempts);
      goes_on = attempts.goes_on(options.stop_requested() || read_summary(directory));
    } catch (const RankFailure& failure) {
      if (has_result(directory)) {
        options.say_problem(std::string(failure.what()) + ", after the end of the run");
        break;
      }
      take_rescue(run, directory, options);
      lines.pass();
      const AttemptSeries::Decision next =
          attempts.after({failure.what(), failure.status, failure.statuses, newest(), lines.written()});
      for (const std::string& problem : next.problems) options.say_problem(problem);
      if (!next.pause) throw;
      wait_for(*next.pause, directory, options);
    }
  }
  lines.pass();
  const std::optional<nlohmann::json> summary = read_summary(directory);
  if (!summary && options.stop_requested()) throw_stopped(directory);
  if (!summary) throw CommError("all ranks ended without an error, but rank 0 wrote no " + directory.summary());
  return *summary;
}

}  // namespace droptest::experiments
