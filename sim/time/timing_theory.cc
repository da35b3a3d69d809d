// SPDX-License-Identifier: Apache-2.0
#include "sim/time/timing_theory.h"

namespace droptest::sim {
namespace {

// 2 (N-1)/N n beta: each rank sends and receives all parts but its own, twice.
double both_halves_seconds(int ranks, double bytes, const LinkCost& link) {
  const double n = ranks;
  return 2 * link.transfer_seconds((n - 1) / n * bytes);
}

}  // namespace

double ring_all_reduce_seconds(int ranks, double bytes, const LinkCost& link) {
  return 2 * (ranks - 1) * link.latency_seconds + both_halves_seconds(ranks, bytes, link);
}

double direct_all_reduce_seconds(int ranks, double bytes, const LinkCost& link) {
  return (ranks > 1 ? 2 * link.latency_seconds : 0) + both_halves_seconds(ranks, bytes, link);
}

double aggregation_seconds(double bytes, const LinkCost& link) {
  return 2 * link.latency_seconds + link.transfer_seconds(bytes);
}

}  // namespace droptest::sim
