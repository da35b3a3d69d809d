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

/// The state of one rank.
struct RoundClock::Port {
  double data = 0;         ///< time when the rank has received all earlier rounds
  double sends = 0;        ///< time when the port that sends is free
  double receives = 0;     ///< time when the port that receives is free
  double arrived = 0;      ///< the latest arrival of the round at hand
  std::size_t rounds = 0;  ///< number of the round after the last one that brought something
  /// Whether the round at hand brought something.
  enum class Takes : std::uint8_t { kNothing, kSomething } takes = Takes::kNothing;

  /// The time at which it stops waiting in a round.
  double patience_ends(std::size_t round, double deadline) const {
    return data + deadline * static_cast<double>(round + 1 - rounds);
  }
};

RoundClock::RoundClock(std::span<const double> start_seconds, std::optional<double> deadline_seconds)
    : deadline_(deadline_seconds.value_or(std::numeric_limits<double>::infinity())), ports_(start_seconds.size()) {
  for (std::size_t r = 0; r < ports_.size(); ++r) {
    // Data that arrives before a rank has begun waits for it in memory.
    ports_[r] = {start_seconds[r], start_seconds[r], -std::numeric_limits<double>::infinity(), start_seconds[r]};
  }
}

RoundClock::~RoundClock() = default;

void RoundClock::begin_round() {
  for (Port& port : ports_) {
    port.arrived = port.data;
    port.takes = Port::Takes::kNothing;
  }
}

double RoundClock::start_seconds(const TimedHop& hop, const HopCost& cost) const {
  const Port& source = ports_.at(static_cast<std::size_t>(hop.source));
  const Port& destination = ports_.at(static_cast<std::size_t>(hop.destination));
  return std::max({source.data, source.sends, destination.receives - cost.latency_seconds});
}

std::uint64_t RoundClock::play(const TimedHop& hop, const HopCost& cost) {
  DROPTEST_CHECK(hop.source != hop.destination, "a hop from a rank to itself");
  Port& source = ports_.at(static_cast<std::size_t>(hop.source));
  Port& destination = ports_.at(static_cast<std::size_t>(hop.destination));
  const double start = start_seconds(hop, cost);
  const double first_bit = start + cost.latency_seconds;
  const double limit = destination.patience_ends(round_, deadline_);
  const double given_up = source.patience_ends(round_, deadline_);
  const double last_bit = first_bit + cost.transfer_seconds;
  source.sends = std::max(source.sends, std::min(start + cost.transfer_seconds, given_up));
  destination.receives = std::max(destination.receives, std::min(last_bit, limit));
  destination.arrived = std::max(destination.arrived, std::min(last_bit + cost.waiting_seconds, limit));
  destination.takes = Port::Takes::kSomething;
  return packets_in_time(cost, first_bit, std::min(limit, given_up + cost.latency_seconds));
}

void RoundClock::end_round() {
  ++round_;
  for (Port& port : ports_) {
    if (port.takes == Port::Takes::kNothing) continue;
    port.data = port.arrived;
    port.rounds = round_;
  }
}

void RoundClock::finish(std::span<double> finish_seconds) const {
  DROPTEST_CHECK(finish_seconds.size() == ports_.size(), "a clock for each rank");
  for (std::size_t r = 0; r < ports_.size(); ++r) finish_seconds[r] = std::max(ports_[r].data, ports_[r].sends);
}

}  // namespace droptest::sim
