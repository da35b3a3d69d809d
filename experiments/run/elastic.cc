// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/elastic.h"

#include <algorithm>
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
  if (!config.elastic) {
    throw ConfigError("/parallel: got " + config.parallel.text() + ", " + std::to_string(config.parallel.world_size()) +
                      " ranks in all, but " + started + "one for each rank");
  }
  throw ConfigError("/elastic: got " + std::to_string(config.elastic->min_data) + " to " +
                    std::to_string(config.elastic->max_data) + " replicas of " + std::to_string(of_replica) +
                    " ranks each, but " + started + "those of whole replicas");
}

int replicas_after_failure(const RunConfig& config, int replicas) {
  return config.elastic ? std::max(std::min(replicas, config.elastic->min_data), replicas - 1) : replicas;
}

}  // namespace droptest::experiments
