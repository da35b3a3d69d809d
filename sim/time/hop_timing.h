// SPDX-License-Identifier: Apache-2.0
// A collective as hops between ranks, and the time at which each rank is done with it.
#pragma once

#include <cstddef>
#include <cstdint>
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

/// Time and packets of one hop.
struct HopCost {
  double latency_seconds = 0;
  double transfer_seconds = 0;  ///< time in which it occupies the sender's and the receiver's port
  double waiting_seconds = 0;   ///< time from its last packet on the wire to its end, while its ports carry other hops
  std::uint64_t packets = 0;    ///< packets that it delivers evenly over its transfer
};

/// The clocks of a group's ranks during a collective. Every rank has one port that sends and one that receives, both at
/// the same time. A hop starts when its data are there and both its ports are free; ports take hops in the order of
/// play(). While a hop waits for feedback or timers its ports carry other hops; the packets that it sends again are
/// placed right behind its first ones. The sends of a rank in a round need all its receives of the rounds before, and
/// none of the same round. A receiver with a deadline waits that long for a round, and once more for each round since
/// it last received something, because its senders wait, too. Packets that have not arrived then are late, and their
/// sender gives them up. Determinism: a pure function of the start times, the hops and their costs.
class RoundClock {
 public:
  /// Rank r starts at start_seconds[r].
  explicit RoundClock(std::span<const double> start_seconds, std::optional<double> deadline_seconds = std::nullopt);
  ~RoundClock();

  /// Mark the beginning and the end of a round's hops.
  void begin_round();
  void end_round();

  /// The time at which the round's next hop would begin; only the latency of `cost` has an effect.
  double start_seconds(const TimedHop& hop, const HopCost& cost) const;

  /// Plays the round's next hop. Returns the number of its packets that arrive before the deadline.
  std::uint64_t play(const TimedHop& hop, const HopCost& cost);

  /// Writes for each rank the time at which it has received all so far and may reuse its sent buffers. Shapes: one for
  /// each rank.
  void finish(std::span<double> finish_seconds) const;

 private:
  struct Port;
  double deadline_;
  std::size_t round_ = 0;
  std::vector<Port> ports_;
};

/// Packets of a transfer that have arrived by `limit_seconds`, if the first bit arrives at `first_bit_seconds`.
std::uint64_t packets_in_time(const HopCost& cost, double first_bit_seconds, double limit_seconds);

}  // namespace droptest::sim
