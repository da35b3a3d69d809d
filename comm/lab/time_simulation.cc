// SPDX-License-Identifier: Apache-2.0
#include "comm/lab/time_simulation.h"

#include <algorithm>
#include <vector>

#include "comm/communicator.h"

#include "sim/time/straggler.h"

namespace droptest::comm {

SimulatedTime simulate_time(const FateSimulation& simulation, const TimeModel& model) {
  return simulate_time(simulation, model, [](std::uint64_t /*trial*/, const Transmission& /*message*/) {});
}

SimulatedTime simulate_time(const FateSimulation& simulation, const TimeModel& model,
                            const std::function<void(std::uint64_t trial, const Transmission&)>& visit) {
  validate(simulation.network);
  Network network;
  network.seed = simulation.seed;
  network.of(simulation.traffic_class) = simulation.network;
  validate(model, network);
  std::vector<int> world_ranks(static_cast<std::size_t>(simulation.ranks));
  for (std::size_t r = 0; r < world_ranks.size(); ++r) {
    world_ranks[r] = simulation.world_rank(static_cast<int>(r));
  }
  CollectiveTiming timing(network, model, 0, world_ranks);
  const sim::Straggler compute(model.compute_p99_over_p50);

  const std::vector<std::uint64_t> counts = counts_of(simulation);
  const CallShape call = shape_of(simulation, counts);
  SimulatedTime result;
  std::vector<double> clocks(world_ranks.size(), 0);
  for (std::uint64_t trial = 0; trial < simulation.trials; ++trial) {
    for (std::size_t rank = 0; rank < clocks.size(); ++rank) {
      const double taken = model.compute_seconds.value_or(0) *
                           compute.factor(network.seed, sim::Purpose::kComputeStraggler, rank, trial);
      clocks[rank] += taken;
      result.total.compute_seconds += taken / static_cast<double>(simulation.ranks);
    }
    if (simulation.ranks > 1) {
      const Delivery delivery =
          delivery_of({simulation.traffic_class, simulation.message_name}, simulation.network, trial);
      timing.collective(call, {simulation.traffic_class, ElementType::kFloat32, delivery, {}, false, trial}, clocks,
                        [&](const Transmission& message) {
                          count_message(message, result.total);
                          visit(trial, message);
                        });
    }
    const double latest = *std::max_element(clocks.begin(), clocks.end());
    result.seconds.push_back(latest - result.total.seconds);
    result.total.seconds = latest;
  }
  return result;
}

}  // namespace droptest::comm
