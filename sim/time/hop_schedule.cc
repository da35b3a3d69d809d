// SPDX-License-Identifier: Apache-2.0
#include "sim/time/hop_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/error.h"

namespace droptest::sim {
namespace {

// A packet that arrives exactly at the deadline is in time, whatever the rounding of the sums says.
constexpr double kRoundingPackets = 1e-6;

// One rank's state.
struct Port {
  double data = 0;         // has received all earlier rounds
  double sends = 0;        // the port that sends is free
  double receives = 0;     // the port that receives is free
  double arrived = 0;      // the latest arrival of the round at hand
  std::size_t rounds = 0;  // it had received after so many rounds

  // When it stops waiting in a round. Those it waits for may themselves wait that long in each round between.
  double patience_ends(std::size_t round, double deadline) const {
    return data + deadline * static_cast<double>(round + 1 - rounds);
  }
};

}  // namespace

std::uint64_t packets_in_time(const HopCost& cost, double first_bit_seconds, double limit_seconds) {
  if (first_bit_seconds + cost.transfer_seconds <= limit_seconds) return cost.packets;
  const double share = (limit_seconds - first_bit_seconds) / cost.transfer_seconds;
  if (!(share > 0)) return 0;
  const double packets = std::floor(share * static_cast<double>(cost.packets) + kRoundingPackets);
  return std::min(cost.packets, static_cast<std::uint64_t>(packets));
}

ScheduleOutcome play_schedule(const HopSchedule& schedule, std::span<const double> start_seconds,
                              const CostOfHop& cost_of_hop, std::optional<double> deadline_seconds) {
  const double deadline = deadline_seconds.value_or(std::numeric_limits<double>::infinity());
  std::vector<Port> ports(start_seconds.size());
  for (std::size_t r = 0; r < ports.size(); ++r) {
    // What comes before a rank has begun waits for it in memory.
    ports[r] = {start_seconds[r], start_seconds[r], -std::numeric_limits<double>::infinity(), start_seconds[r], 0};
  }
  ScheduleOutcome outcome;
  for (std::size_t round = 0; round < schedule.size(); ++round) {
    for (Port& port : ports) port.arrived = port.data;
    for (const Hop& hop : schedule[round]) {
      DROPTEST_CHECK(hop.source != hop.destination, "a hop from a rank to itself");
      Port& source = ports.at(static_cast<std::size_t>(hop.source));
      Port& destination = ports.at(static_cast<std::size_t>(hop.destination));
      const HopCost cost = cost_of_hop(hop, round);
      const double start = std::max({source.data, source.sends, destination.receives - cost.latency_seconds});
      const double first_bit = start + cost.latency_seconds;
      const double limit = destination.patience_ends(round, deadline);
      const double given_up = source.patience_ends(round, deadline);
      outcome.in_time.push_back(packets_in_time(cost, first_bit, std::min(limit, given_up + cost.latency_seconds)));
      const double arrival = first_bit + cost.transfer_seconds;
      source.sends = std::max(source.sends, std::min(start + cost.transfer_seconds, given_up));
      destination.receives = std::max(destination.receives, std::min(arrival, limit));
      destination.arrived = std::max(destination.arrived, std::min(arrival, limit));
    }
    for (const Hop& hop : schedule[round]) {
      Port& port = ports[static_cast<std::size_t>(hop.destination)];
      port.data = port.arrived;
      port.rounds = round + 1;
    }
  }
  for (const Port& port : ports) outcome.finish_seconds.push_back(std::max(port.data, port.sends));
  return outcome;
}

}  // namespace droptest::sim
