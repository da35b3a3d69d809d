// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/elastic.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>

#include "sim/error.h"

namespace droptest::experiments {

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

int replicas_after_failure(const RunConfig& config, int replicas) {
  return config.elastic ? std::max(std::min(replicas, config.elastic->min_data), replicas - 1) : replicas;
}

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

}  // namespace droptest::experiments
