// SPDX-License-Identifier: Apache-2.0
// The states of a chain of two states, 64 packets at a time, as plain arithmetic: the same on the host and on a device.
#pragma once

#include <cstdint>

#include "sim/random/threshold.h"

namespace droptest::sim {

/// A chain of two states, good and bad, as thresholds of draws (docs/fates.md). By default nothing is ever lost; with
/// to_bad == to_good each packet is lost where its draw is below.
struct ChainThresholds {
  std::uint64_t to_bad = 0;              ///< transition draws below: from either state to bad
  std::uint64_t to_good = 0;             ///< transition draws not below: from either state to good
  std::uint64_t lost_in_good = 0;        ///< emission draws below: lost in the good state
  std::uint64_t lost_in_bad = kCertain;  ///< likewise in the bad state
  bool middle_swaps = false;             ///< the transition draws in between swap the state instead of keeping it

  /// Whether the state itself is the fate.
  constexpr bool needs_no_emission() const { return lost_in_good == 0 && lost_in_bad == kCertain; }
};

/// Bit t of the result is the state at t, where bit t of `set` makes it 1, bit t of `keep` keeps the state at t - 1,
/// and any other bit makes it 0; `before` is the state at -1. One addition: a set bit generates a carry, a kept one
/// propagates it, and the carry out of a bit is its state. `set` and `keep` are disjoint.
constexpr std::uint64_t run_states(std::uint64_t set, std::uint64_t keep, bool before) {
  const std::uint64_t a = set | keep;
  const std::uint64_t sum = a + set + (before ? 1 : 0);
  const std::uint64_t carries_in = sum ^ a ^ set;
  const std::uint64_t carry_out = (set | (keep & ~sum)) >> 63;
  return carries_in >> 1 | carry_out << 63;
}

/// Bit t of the result is the parity of bits 0 to t.
constexpr std::uint64_t prefix_parity(std::uint64_t bits) {
  for (int shift = 1; shift < 64; shift *= 2) bits ^= bits << shift;
  return bits;
}

/// The states of 64 packets where draws in the middle swap the state. With c_t the parity of the swaps up to t, the
/// state xor c is kept by a swap, and set to (the set state) xor c by a decisive draw: the same addition as above.
constexpr std::uint64_t run_swapping_states(std::uint64_t set, std::uint64_t swap, bool before) {
  const std::uint64_t parity = prefix_parity(swap);
  const std::uint64_t clear = ~(set | swap);
  return run_states((set & ~parity) | (clear & parity), swap, before) ^ parity;
}

}  // namespace droptest::sim
