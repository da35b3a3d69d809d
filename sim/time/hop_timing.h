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
struct TimedHop {
  int source = 0;
  int destination = 0;
  std::uint64_t elements = 0;
  Half half = Half::kReduce;
};

/// What a rank sends in a round needs all that it received in the rounds before, and nothing of the same round. A rank
/// sends the hops of a round in their order, and receives them likewise.
using TimedRound = std::vector<TimedHop>;
using TimedRounds = std::vector<TimedRound>;

/// What one hop takes.
struct HopCost {
  double latency_seconds = 0;
  double transfer_seconds = 0;  ///< for which it occupies the sender's and the receiver's port
  std::uint64_t packets = 0;    ///< that it delivers evenly over its transfer
};
/// Called once for each hop, in the schedule's order.
using CostOfHop = std::function<HopCost(const TimedHop& hop, std::size_t round)>;

/// The clocks of a group's ranks during a collective. Every rank has one port that sends and one that receives, both at
/// once; a hop starts when its data are there and both its ports are free, in the hops' order. With a deadline, a
/// receiver waits so long for a round, and for each round since it last received something, because those it waits for
/// do so too; what has not arrived then is late, and its sender gives it up.
/// Determinism: a pure function of what it was given.
class RoundClock {
 public:
  /// Rank r starts at start_seconds[r].
  explicit RoundClock(std::span<const double> start_seconds, std::optional<double> deadline_seconds = std::nullopt);

  /// The next round. Returns, by hop, how many packets arrive before the deadline.
  std::vector<std::uint64_t> play(const TimedRound& hops, const CostOfHop& cost_of_hop);

  /// By rank: when it has received all so far and may reuse what it sent.
  std::vector<double> finish_seconds() const;

 private:
  struct Port;

  double deadline_;
  std::size_t round_ = 0;
  std::vector<Port> ports_;
};

/// The state of one rank.
struct RoundClock::Port {
  double data = 0;         ///< has received all earlier rounds
  double sends = 0;        ///< the port that sends is free
  double receives = 0;     ///< the port that receives is free
  double arrived = 0;      ///< the latest arrival of the round at hand
  std::size_t rounds = 0;  ///< it last received something in the round before this one

  /// When it stops waiting in a round.
  double patience_ends(std::size_t round, double deadline) const {
    return data + deadline * static_cast<double>(round + 1 - rounds);
  }
};

struct RoundsOutcome {
  std::vector<double> finish_seconds;  ///< by rank
  std::vector<std::uint64_t> in_time;  ///< by hop, in order: packets that arrived before the deadline
};
/// All rounds of a collective at once.
RoundsOutcome play_rounds(const TimedRounds& rounds, std::span<const double> start_seconds,
                          const CostOfHop& cost_of_hop, std::optional<double> deadline_seconds = std::nullopt);

/// Packets of a transfer that have arrived by `limit_seconds`, where the first bit arrives at `first_bit_seconds`.
std::uint64_t packets_in_time(const HopCost& cost, double first_bit_seconds, double limit_seconds);

}  // namespace droptest::sim
