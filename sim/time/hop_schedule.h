// SPDX-License-Identifier: Apache-2.0
// A collective as hops between ranks, and when each rank is done with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "sim/loss/link.h"

namespace droptest::sim {

/// One message of a collective, from one rank of the group to another.
struct Hop {
  int source = 0;
  int destination = 0;
  std::uint64_t elements = 0;
  Half half = Half::kReduce;
};

/// What a rank sends in a round needs all that it received in the rounds before, and nothing of the same round. A rank
/// sends the hops of a round in their order, and receives them likewise.
using HopRound = std::vector<Hop>;
using HopSchedule = std::vector<HopRound>;

/// What one hop takes.
struct HopCost {
  double latency_seconds = 0;
  double transfer_seconds = 0;  ///< for which it occupies the sender's and the receiver's port
  std::uint64_t packets = 0;    ///< that it delivers evenly over its transfer
};
/// Called once for each hop, in the schedule's order.
using CostOfHop = std::function<HopCost(const Hop& hop, std::size_t round)>;

struct ScheduleOutcome {
  std::vector<double> finish_seconds;  ///< by rank: has received all and may reuse what it sent
  std::vector<std::uint64_t> in_time;  ///< by hop, in the schedule's order: packets that arrived before the deadline
};

/// When each rank finishes, if it starts at start_seconds[rank]. Every rank has one port that sends and one that
/// receives, both at once; a hop starts when its data are there and both its ports are free, in the schedule's order.
/// With a deadline, a receiver waits so long for a round, and for each round since it last received something, because
/// those it waits for do so too; what has not arrived then is late, and its sender gives it up. A pure function.
ScheduleOutcome play_schedule(const HopSchedule& schedule, std::span<const double> start_seconds,
                              const CostOfHop& cost_of_hop, std::optional<double> deadline_seconds = std::nullopt);

/// Packets of a transfer that have arrived by `limit_seconds`, where the first bit arrives at `first_bit_seconds`.
std::uint64_t packets_in_time(const HopCost& cost, double first_bit_seconds, double limit_seconds);

}  // namespace droptest::sim
