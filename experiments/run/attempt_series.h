// SPDX-License-Identifier: Apache-2.0
// The attempts of a run whose rank processes can die (docs/checkpoints.md): when the next one begins, and with how many
// replicas.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/process/child_process.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The replicas of a launch with that many ranks; the spec's number if the run is not elastic. `launcher`: who started
/// the ranks, for the error. Throws: ConfigError for a number of ranks that the run cannot have.
int replicas_of_launch(const RunConfig& config, int ranks, const std::string& launcher);

/// The pause before the next attempt after that many failed ones, which doubles each time; absent: there is none.
std::optional<std::chrono::milliseconds> pause_before_restart(const std::optional<RestartConfig>& restart,
                                                              int failed_attempts);

/// What the parent of the ranks decides between two attempts. It knows no processes, files or clocks.
class AttemptSeries {
 public:
  /// How an attempt failed.
  struct Failure {
    std::string text;
    ExitStatus status;                          ///< the end of the rank that failed first
    std::vector<ExitStatus> statuses;           ///< the ends of all ranks
    std::uint64_t newest_checkpoint = 0;        ///< its step, after the ranks' state became one; 0: there is none
    std::optional<std::uint64_t> written_step;  ///< the last one of metrics.jsonl; absent: the attempt wrote none
  };

  /// The decision after a failure, and the problems to report.
  struct Decision {
    std::optional<std::chrono::milliseconds> pause;  ///< before the next attempt; absent: there is none
    std::vector<std::string> problems;
  };

  /// `config` is borrowed. `newest_checkpoint`: the step of the one that the first attempt goes on from; 0: none.
  /// `user_error_code`: the exit code of a rank that found a mistake of the user's, which the next attempt would find
  /// again. `rescue`: where ranks leave their state, for the problems.
  AttemptSeries(const RunConfig& config, std::uint64_t newest_checkpoint, int user_error_code, std::string rescue);

  /// The replicas and the ranks of the attempt that is next, or under way.
  int replicas() const { return replicas_; }
  int ranks() const;
  /// How many times the ranks of failed attempts could not leave their state (rescue.h).
  std::uint64_t states_not_left() const { return states_not_left_; }

  /// After an attempt whose ranks all ended without an error: whether it ended only for more replicas to go on, which
  /// the next attempt then has. `is_over`: the run has its summary, or was asked to end.
  bool goes_on(bool is_over);

  /// After a failed attempt. A checkpoint that is newer than the last one begins the count of failures anew.
  Decision after(const Failure& failure);

 private:
  const RunConfig& config_;
  const int user_error_code_;
  const std::string rescue_;
  int replicas_;
  std::uint64_t reached_;  ///< the step of the newest checkpoint
  int failed_ = 0;         ///< attempts since that checkpoint
  std::uint64_t states_not_left_ = 0;
};

}  // namespace droptest::experiments
