// SPDX-License-Identifier: Apache-2.0
// Source, destination, traffic class and half: the stream of packets along which fates run.
#pragma once

#include <compare>
#include <cstdint>

#include "sim/state_visitor.h"
#include "sim/traffic_class.h"

namespace droptest::sim {

/// The half of a collective in which a packet travels. The halves are flows of their own on a link, each with its
/// packet index, so that they can have different loss and the statistics of each stay exact. Values are part of the
/// counter.
enum class Half : std::uint8_t {
  kReduce = 0,  ///< towards the rank that sums: reduce-scatter, contributions
  kGather = 1,  ///< away from the rank that has the value: all-gather, broadcast, all-to-all, send
};

/// Ranks are world ranks, 0 to 65534.
struct Link {
  /// Destination of a link on which a loss happens at the sender: all receivers share the fate.
  static constexpr std::uint16_t kEveryDestination = 0xffff;

  TrafficClass traffic_class = TrafficClass::kControl;
  Half half = Half::kReduce;
  std::uint16_t source = 0;
  std::uint16_t destination = kEveryDestination;
  /// Number of the transmission of its packets, at most kMostAttempts; 0: the first one. Each has draws of its own.
  std::uint8_t attempt = 0;
  static constexpr std::uint8_t kMostAttempts = 127;

  void visit_state(StateVisitor& visitor) { visit_values(visitor, traffic_class, half, source, destination, attempt); }
  friend auto operator<=>(const Link&, const Link&) = default;
};

}  // namespace droptest::sim
