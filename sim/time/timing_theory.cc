// SPDX-License-Identifier: Apache-2.0
#include "sim/time/timing_theory.h"

#include <cmath>

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

double halving_doubling_seconds(int ranks, double bytes, const LinkCost& link) {
  return 2 * std::log2(ranks) * link.latency_seconds + both_halves_seconds(ranks, bytes, link);
}

double direct_all_reduce_seconds(int ranks, double bytes, const LinkCost& link) {
  return (ranks > 1 ? 2 * link.latency_seconds : 0) + both_halves_seconds(ranks, bytes, link);
}

double aggregation_seconds(double bytes, const LinkCost& link) {
  return 2 * link.latency_seconds + link.transfer_seconds(bytes);
}

double gilbert_mean_transmissions(double p_good_to_bad, double p_bad_to_good, std::uint64_t slots_between) {
  const double sum = p_good_to_bad + p_bad_to_good;
  const double good = p_bad_to_good / sum;
  return 1 + (1 - good) / ((1 - std::pow(1 - sum, static_cast<double>(slots_between))) * good);
}

}  // namespace droptest::sim
