// SPDX-License-Identifier: Apache-2.0
// Closed forms of collectives' and retransmissions' times, for tests and reports.
#pragma once

#include <cstdint>

#include "sim/time/link_cost.h"

namespace droptest::sim {

/// Time of an all-reduce of `bytes` per rank over N equal links, without loss, all ranks starting together.
/// Source: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005), sections 4.3 and 4.5; alpha latency, beta 1 / bandwidth.
double ring_all_reduce_seconds(int ranks, double bytes, const LinkCost& link);    ///< 2(N-1) alpha + 2 (N-1)/N n beta
double halving_doubling_seconds(int ranks, double bytes, const LinkCost& link);   ///< 2 log2 N alpha + 2 (N-1)/N n beta
double direct_all_reduce_seconds(int ranks, double bytes, const LinkCost& link);  ///< 2 alpha + 2 (N-1)/N n beta
double aggregation_seconds(double bytes, const LinkCost& link);                   ///< 2 alpha + n beta

/// Mean transmissions of a packet on a simple Gilbert link (p good to bad, r bad to good, nothing lost while good) if
/// each repetition comes k slots after the one that was lost: 1 + p_E / ((1 - lambda^k) pi_G) with lambda = 1 - p - r,
/// p_E = p / (p + r), pi_G = r / (p + r). The chance that a slot k after a lost one is lost too is
/// q = 1 - pi_G (1 - lambda^k), so E = 1 + p_E / (1 - q).
double gilbert_mean_transmissions(double p_good_to_bad, double p_bad_to_good, std::uint64_t slots_between);

}  // namespace droptest::sim
