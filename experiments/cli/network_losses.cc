// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/network_losses.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/json/json_text.h"
#include "sim/error.h"
#include "sim/traffic_class.h"

namespace droptest::cli {

void require_ranks_of_network(const experiments::RunConfig& config) {
  if (config.parallel.world_size() > 1) return;
  throw ConfigError(
      "--network: got one for a spec with one rank, which sends no packet; want more, e.g. --set /parallel/tensor=2");
}

nlohmann::json losses_json(const std::vector<comm::ClassStatistics>& statistics) {
  nlohmann::json losses = nlohmann::json::object();
  for (const comm::ClassStatistics& of : statistics) {
    const comm::LossCounts total = of.total();
    losses[std::string(sim::traffic_class_name(of.traffic_class))] = {
        {"packets", total.packets},
        {"lost", total.lost_packets},
        {"configured_rate", comm::finite_or_null(total.configured_rate())},
        {"realised_rate", comm::finite_or_null(total.realised_rate())}};
  }
  return losses;
}

void say_losses(const std::vector<comm::ClassStatistics>& statistics) {
  for (const comm::ClassStatistics& of : statistics) {
    const comm::LossCounts total = of.total();
    if (total.packets == 0) continue;
    std::fprintf(stderr, "%s: lost %llu of %llu packets (%.4f %%)\n",
                 std::string(sim::traffic_class_name(of.traffic_class)).c_str(),
                 static_cast<unsigned long long>(total.lost_packets), static_cast<unsigned long long>(total.packets),
                 100 * total.realised_rate());
  }
}

}  // namespace droptest::cli
