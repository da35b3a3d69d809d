// SPDX-License-Identifier: Apache-2.0
// Closed forms of collectives' times.
#pragma once

#include "sim/time/link_cost.h"

namespace droptest::sim {

/// Time of an all-reduce of n = `bytes` bytes on each of N ranks with equal links, without loss, if all ranks start
/// together.
/// Source: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005), sections 4.3 and 4.5; alpha latency, beta 1 / bandwidth.
double ring_all_reduce_seconds(int ranks, double bytes, const LinkCost& link);    ///< 2(N-1) alpha + 2 (N-1)/N n beta
double direct_all_reduce_seconds(int ranks, double bytes, const LinkCost& link);  ///< 2 alpha + 2 (N-1)/N n beta
double aggregation_seconds(double bytes, const LinkCost& link);  ///< sums in the network: 2 alpha + n beta

}  // namespace droptest::sim
