// SPDX-License-Identifier: Apache-2.0
// The states of a chain of two states, 64 packets at a time, as plain arithmetic: the same on the host and on a device.
#pragma once

#include <cstdint>

#include "sim/random/threshold.h"

namespace droptest::sim {

/// A chain of two states, good and bad, as thresholds of draws (docs/fates.md). The default loses nothing. If only
/// to_bad and to_good are set, to one value, a packet is lost if its draw is below it.
struct ChainThresholds {
  std::uint64_t to_bad = 0;              ///< transition draws below it move either state to bad
  std::uint64_t to_good = 0;             ///< transition draws not below it move either state to good
  std::uint64_t lost_in_good = 0;        ///< emission draws below it lose a packet in the good state
  std::uint64_t lost_in_bad = kCertain;  ///< emission draws below it lose a packet in the bad state
  bool middle_swaps = false;             ///< transition draws in between swap the state instead of keeping it

  /// Whether the state itself is the fate.
  constexpr bool needs_no_emission() const { return lost_in_good == 0 && lost_in_bad == kCertain; }
};

/// The states of 64 packets. Bit t of the result is the state at t: 1 if bit t of `set` is 1, the state at t - 1 if bit
/// t of `keep` is 1, else 0; `before` is the state at -1. `set` and `keep` are disjoint. One addition does it: a set
/// bit generates a carry, a kept one propagates it, and the carry out of a bit is its state.
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

/// The states of 64 packets if draws in the middle swap the state. Let c_t be the parity of the swaps up to t. A swap
/// keeps (the state xor c), and a decisive draw sets it to (the set state) xor c: the addition of run_states().
constexpr std::uint64_t run_swapping_states(std::uint64_t set, std::uint64_t swap, bool before) {
  const std::uint64_t parity = prefix_parity(swap);
  const std::uint64_t clear = ~(set | swap);
  return run_states((set & ~parity) | (clear & parity), swap, before) ^ parity;
}

}  // namespace droptest::sim
