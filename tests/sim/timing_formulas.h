// SPDX-License-Identifier: Apache-2.0
// Closed forms of times, only for tests.
#pragma once

#include <cmath>
#include <cstdint>

#include "sim/time/link_cost.h"

namespace droptest::sim {

/// Seconds of an all-reduce by halving and doubling of `bytes` per rank over N equal links, without loss, if all ranks
/// start together: 2 log2 N alpha + 2 (N-1)/N n beta, with the latency alpha and 1 / bandwidth beta.
/// Source: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005), section 4.5.
inline double halving_doubling_seconds(int ranks, double bytes, const LinkCost& link) {
  const double n = ranks;
  return 2 * std::log2(n) * link.latency_seconds + 2 * link.transfer_seconds((n - 1) / n * bytes);
}

/// Mean transmissions of a packet on a simple Gilbert link (p good to bad, r bad to good, nothing lost while good) if
/// each repetition comes k slots after the one that was lost: 1 + p_E / ((1 - lambda^k) pi_G) with lambda = 1 - p - r,
/// p_E = p / (p + r), pi_G = r / (p + r). The chance that a slot k after a lost one is lost too is
/// q = 1 - pi_G (1 - lambda^k), so E = 1 + p_E / (1 - q).
inline double gilbert_mean_transmissions(double p_good_to_bad, double p_bad_to_good, std::uint64_t slots_between) {
  const double sum = p_good_to_bad + p_bad_to_good;
  const double good = p_bad_to_good / sum;
  return 1 + (1 - good) / ((1 - std::pow(1 - sum, static_cast<double>(slots_between))) * good);
}

}  // namespace droptest::sim
