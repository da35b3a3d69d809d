// SPDX-License-Identifier: Apache-2.0
// Ranks as processes that this one starts and watches, if no launcher did.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "experiments/process/child_process.h"
#include "sim/error.h"

namespace droptest::experiments {

struct RankProcessesOptions {
  std::vector<std::string> command;  ///< command of each rank, the program's path first
  int world_size = 1;
  std::map<std::string, std::string> environment{};  ///< variables of each rank, in addition to its rank and world size
  std::string launch_id;      ///< tells this launch apart from others that use the same rendezvous
  std::string log_directory;  ///< gets rank_<r>.log for each rank; removed when all succeed
  /// The time after the first failure in which the other ranks may notice and report it before they are ended. A rank
  /// that is stopped (SIGSTOP) is not waited for.
  std::chrono::milliseconds grace{5000};
  int kept_descriptor = -1;  ///< open file that all ranks get: the lock of the run
  /// Exit code of a rank that knows the cause, whichever rank ended first: the failure is told in that rank's words.
  int telling_code = -1;
  /// Called some times a second while all ranks run; an exception from it ends them at once. kTellRoot sends SIGTERM to
  /// rank 0, the first time.
  enum class Next : std::uint8_t { kGoOn, kTellRoot };
  std::function<Next()> while_running = [] { return Next::kGoOn; };
  /// Gets each line that rank 0 prints, soon after; after a failure also those of the other ranks.
  std::function<void(const std::string& line)> on_line = [](const std::string&) {};
};

/// A rank ended with an error.
class RankFailure : public CommError {
 public:
  RankFailure(const std::string& text, const ExitStatus& how, std::vector<ExitStatus> of_all)
      : CommError(text), status(how), statuses(std::move(of_all)) {}
  const ExitStatus status;
  const std::vector<ExitStatus> statuses;  ///< statuses of all ranks
};

/// Starts world_size processes with torchrun's variables set, and waits for all. They do not inherit the variables of
/// this process's own launch, such as MASTER_ADDR. When one fails, the others get `grace` and are then ended: none is
/// left when this returns or throws, and none outlives this process. Throws: RankFailure that names the rank that
/// failed first, or one with the telling code, how it ended and the last line of its log; the exception of
/// while_running, without the logs.
void run_rank_processes(const RankProcessesOptions& options);

}  // namespace droptest::experiments
