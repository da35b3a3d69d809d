// SPDX-License-Identifier: Apache-2.0
// The cost of a link: the alpha-beta model, for each class of links.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/state_visitor.h"

namespace droptest::sim {

/// The whole slots that have gone by after `seconds`. Times beyond the largest number of slots count as that number, so
/// that the integer exists for any time. Shapes: slot_seconds is positive.
inline std::uint64_t whole_slots(double seconds, double slot_seconds) {
  constexpr double kMostSlots = 1e18;
  const double slots = seconds / slot_seconds;
  return slots > 0 ? static_cast<std::uint64_t>(std::min(slots, kMostSlots)) : 0;
}

/// Time of a message of n bytes: latency + n / bandwidth. Source: Hockney, Parallel Computing 20 (1994); alpha is the
/// latency, beta the inverse of the bandwidth.
struct LinkCost {
  double latency_seconds = 0;
  double bytes_per_second = 1;  ///< positive

  double transfer_seconds(double bytes) const { return bytes / bytes_per_second; }
  /// Time from a packet's loss to the sender's knowledge of it by a negative acknowledgement: there and back.
  double round_trip_seconds() const { return 2 * latency_seconds; }
};

/// The time scales of one link, as a sender that repeats sees them. Without a clock a slot is the unit, and a round
/// trip takes 63 of them, so that a lost packet can be sent again 64 slots later.
struct LinkTiming {
  double slot_seconds = 1;         ///< time of one packet, positive
  double round_trip_seconds = 63;  ///< time from a loss to the sender's knowledge of it, without the slot

  /// The slots that a time takes, rounded.
  std::uint64_t slots(double seconds) const { return whole_slots(seconds + slot_seconds / 2, slot_seconds); }
  /// Slots from the one that loses a packet to the one that can send it again: the lost slot and a round trip.
  std::uint64_t window_slots() const { return 1 + slots(round_trip_seconds); }
  void visit_state(StateVisitor& visitor) { visit_values(visitor, slot_seconds, round_trip_seconds); }
};

/// The links of a group: ranks in groups of `group_ranks` consecutive ones share a node; 0: all links are alike.
struct LinkClasses {
  LinkCost within;
  LinkCost between;
  int group_ranks = 0;

  const LinkCost& of(int source, int destination) const {
    return group_ranks == 0 || source / group_ranks == destination / group_ranks ? within : between;
  }
};

}  // namespace droptest::sim
