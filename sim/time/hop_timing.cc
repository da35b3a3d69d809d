// SPDX-License-Identifier: Apache-2.0
#include "sim/time/hop_timing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/error.h"

namespace droptest::sim {
namespace {

// A packet that arrives exactly at the deadline is in time, whatever the rounding of the sums says.
constexpr double kRoundingPackets = 1e-6;

}  // namespace

std::uint64_t packets_in_time(const HopCost& cost, double first_bit_seconds, double limit_seconds) {
  if (first_bit_seconds + cost.transfer_seconds <= limit_seconds) return cost.packets;
  const double share = (limit_seconds - first_bit_seconds) / cost.transfer_seconds;
  if (!(share > 0)) return 0;
  const double packets = std::floor(share * static_cast<double>(cost.packets) + kRoundingPackets);
  return std::min(cost.packets, static_cast<std::uint64_t>(packets));
}

RoundClock::RoundClock(std::span<const double> start_seconds, std::optional<double> deadline_seconds)
    : deadline_(deadline_seconds.value_or(std::numeric_limits<double>::infinity())), ports_(start_seconds.size()) {
  for (std::size_t r = 0; r < ports_.size(); ++r) {
    // What comes before a rank has begun waits for it in memory.
    ports_[r] = {start_seconds[r], start_seconds[r], -std::numeric_limits<double>::infinity(), start_seconds[r], 0};
  }
}

std::vector<std::uint64_t> RoundClock::play(const TimedRound& hops, const CostOfHop& cost_of_hop) {
  std::vector<std::uint64_t> in_time;
  for (Port& port : ports_) port.arrived = port.data;
  for (const TimedHop& hop : hops) {
    DROPTEST_CHECK(hop.source != hop.destination, "a hop from a rank to itself");
    Port& source = ports_.at(static_cast<std::size_t>(hop.source));
    Port& destination = ports_.at(static_cast<std::size_t>(hop.destination));
    const HopCost cost = cost_of_hop(hop, round_);
    const double start = std::max({source.data, source.sends, destination.receives - cost.latency_seconds});
    const double first_bit = start + cost.latency_seconds;
    const double limit = destination.patience_ends(round_, deadline_);
    const double given_up = source.patience_ends(round_, deadline_);
    in_time.push_back(packets_in_time(cost, first_bit, std::min(limit, given_up + cost.latency_seconds)));
    const double arrival = std::min(first_bit + cost.transfer_seconds, limit);
    source.sends = std::max(source.sends, std::min(start + cost.transfer_seconds, given_up));
    destination.receives = std::max(destination.receives, arrival);
    destination.arrived = std::max(destination.arrived, arrival);
  }
  ++round_;
  for (const TimedHop& hop : hops) {
    Port& port = ports_[static_cast<std::size_t>(hop.destination)];
    port.data = port.arrived;
    port.rounds = round_;
  }
  return in_time;
}

std::vector<double> RoundClock::finish_seconds() const {
  std::vector<double> finish;
  for (const Port& port : ports_) finish.push_back(std::max(port.data, port.sends));
  return finish;
}

RoundsOutcome play_rounds(const TimedRounds& rounds, std::span<const double> start_seconds,
                          const CostOfHop& cost_of_hop, std::optional<double> deadline_seconds) {
  RoundClock clock(start_seconds, deadline_seconds);
  RoundsOutcome outcome;
  for (const TimedRound& round : rounds) {
    const std::vector<std::uint64_t> in_time = clock.play(round, cost_of_hop);
    outcome.in_time.insert(outcome.in_time.end(), in_time.begin(), in_time.end());
  }
  outcome.finish_seconds = clock.finish_seconds();
  return outcome;
}

}  // namespace droptest::sim
