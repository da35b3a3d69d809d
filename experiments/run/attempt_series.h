// SPDX-License-Identifier: Apache-2.0
// The attempts of a run with rank processes that can die (docs/checkpoints.md): start and replicas of the next one.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/process/child_process.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The number of replicas of a launch with that many ranks; the spec's number if the run is not elastic. `launcher`:
/// the name of the program that started the ranks, for the error. Throws: ConfigError for a number of ranks that the
/// run cannot have.
int replicas_of_launch(const RunConfig& config, int ranks, const std::string& launcher);

/// The pause before the next attempt after that many failed ones; it doubles each time. Absent: no attempt follows.
std::optional<std::chrono::milliseconds> pause_before_restart(const std::optional<RestartConfig>& restart,
                                                              int failed_attempts);

/// The decisions of the parent of the ranks between two attempts. The class knows no processes, files or clocks.
class AttemptSeries {
 public:
  /// The failure of an attempt.
  struct Failure {
    std::string text;
    ExitStatus status;                          ///< the end of the rank that failed first
    std::vector<ExitStatus> statuses;           ///< the ends of all ranks
    std::uint64_t newest_checkpoint = 0;        ///< step of the newest checkpoint, a rescue included; 0: there is none
    std::optional<std::uint64_t> written_step;  ///< last step that the attempt has written; absent: none
  };

  /// The decision after a failure, and the problems to report.
  struct Decision {
    std::optional<std::chrono::milliseconds> pause;  ///< the pause before the next attempt; absent: none follows
    std::vector<std::string> problems;
  };

  /// `config` is borrowed. `newest_checkpoint`: the step of the checkpoint from which the first attempt goes on; 0:
  /// none. `user_error_code`: the exit code of a rank that found a mistake of the user's, which the next attempt would
  /// find again. `rescue`: the folder in which ranks leave their state, for the problems.
  AttemptSeries(const RunConfig& config, std::uint64_t newest_checkpoint, int user_error_code, std::string rescue);

  /// The numbers of replicas and ranks of the next attempt, or of the one under way.
  int replicas() const { return replicas_; }
  int ranks() const;
  /// How many times the ranks of failed attempts could not leave their state (rescue.h).
  std::uint64_t states_not_left() const { return states_not_left_; }

  /// Called after an attempt in which all ranks ended without an error. Returns whether another attempt follows: this
  /// one ended only for all replicas to go on. `is_over`: the run has its summary, or was asked to end.
  bool goes_on(bool is_over);

  /// Called after a failed attempt. A checkpoint that is newer than the last one resets the count of failures.
  Decision after(const Failure& failure);

 private:
  const RunConfig& config_;
  const int user_error_code_;
  const std::string rescue_;
  int replicas_;
  std::uint64_t reached_;  ///< the step of the newest checkpoint
  int failed_ = 0;         ///< failed attempts since that checkpoint
  std::uint64_t states_not_left_ = 0;
};

}  // namespace droptest::experiments
