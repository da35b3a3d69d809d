// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/attempt_series.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The number of replicas of the next attempt, after one has died: one fewer, but not below the spec's least number.
int replicas_after_failure(const RunConfig& config, int replicas) {
  return config.elastic ? std::max(std::min(replicas, config.elastic->min_data), replicas - 1) : replicas;
}

/// Whether a replica could have left its state (rescue.h) when ranks were killed: some replica had no killed rank, and
/// some other replica had one.
bool could_leave_state(const RunConfig& config, int replicas, const std::vector<ExitStatus>& ranks) {
  if (!config.elastic || config.sharding.zero != 0) return false;
  comm::ParallelLayout layout = config.parallel;
  layout.data = replicas;
  std::set<int> broken;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].signal != 0) broken.insert(layout.coordinates(static_cast<int>(r)).data);
  }
  return !broken.empty() && static_cast<int>(broken.size()) < replicas;
}

}  // namespace

int replicas_of_launch(const RunConfig& config, int ranks, const std::string& launcher) {
  const int data = config.parallel.data;
  const int of_replica = config.parallel.world_size() / data;
  const int replicas = ranks % of_replica == 0 ? ranks / of_replica : 0;
  if (replicas == data) return data;
  if (config.elastic && replicas >= config.elastic->min_data && replicas <= config.elastic->max_data) return replicas;
  const std::string started = launcher + " started " + std::to_string(ranks) + " processes; start ";
  // A shell of srun --pty is a task of a step; without the step's number it is a shell as any other.
  const std::string of_interactive_step =
      launcher == "Slurm" && ranks == 1 ? "; in a shell that srun --pty opened, unset SLURM_STEP_ID first" : "";
  if (!config.elastic) {
    throw ConfigError("/parallel: got " + config.parallel.text() + ", " + std::to_string(config.parallel.world_size()) +
                      " ranks in all, but " + started + "one for each rank" + of_interactive_step);
  }
  throw ConfigError("/elastic: got " + std::to_string(config.elastic->min_data) + " to " +
                    std::to_string(config.elastic->max_data) + " replicas of " + std::to_string(of_replica) +
                    " ranks each, but " + started + "those of whole replicas" + of_interactive_step);
}

std::optional<std::chrono::milliseconds> pause_before_restart(const std::optional<RestartConfig>& restart,
                                                              int failed_attempts) {
  if (!restart || failed_attempts > restart->attempts) return std::nullopt;
  constexpr double kLongestSeconds = 86400;
  const double seconds = std::min(kLongestSeconds, std::ldexp(restart->backoff_seconds, failed_attempts - 1));
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

AttemptSeries::AttemptSeries(const RunConfig& config, std::uint64_t newest_checkpoint, int user_error_code,
                             std::string rescue)
    : config_(config),
      user_error_code_(user_error_code),
      rescue_(std::move(rescue)),
      replicas_(config.parallel.data),
      reached_(newest_checkpoint) {}

int AttemptSeries::ranks() const { return config_.parallel.world_size() / config_.parallel.data * replicas_; }

bool AttemptSeries::goes_on(bool is_over) {
  if (is_over || replicas_ == config_.parallel.data) return false;
  replicas_ = config_.parallel.data;
  return true;
}

AttemptSeries::Decision AttemptSeries::after(const Failure& failure) {
  Decision decision;
  const auto report = [&decision](const std::string& text) { decision.problems.push_back(text); };
  if (failure.newest_checkpoint > reached_) failed_ = 0;
  reached_ = failure.newest_checkpoint;
  const std::uint64_t written = failure.written_step.value_or(0);
  if (could_leave_state(config_, replicas_, failure.statuses) && written > reached_) {
    report("no replica has left its state in " + rescue_ + ": steps " + std::to_string(reached_ + 1) + " to " +
           std::to_string(written) + " are done again");
    ++states_not_left_;
  }
  const auto pause = pause_before_restart(config_.restart, ++failed_);
  if (!pause) return decision;
  if (failure.status.signal == 0 && failure.status.code == user_error_code_) {
    report("no further attempt: a spec, an option or a file is wrong");
    return decision;
  }
  // Without a checkpoint nothing is lost by a start with all replicas.
  if (reached_ > 0) replicas_ = replicas_after_failure(config_, replicas_);
  report(failure.text + "; attempt " + std::to_string(failed_ + 1) + " of " +
         std::to_string(config_.restart->attempts + 1) +
         (config_.elastic ? ", with data " + std::to_string(replicas_) + "," : "") + " begins in " +
         std::to_string(pause->count()) + " ms");
  decision.pause = pause;
  return decision;
}

}  // namespace droptest::experiments
