// SPDX-License-Identifier: Apache-2.0
#include "sim/time/retransmission_rounds.h"

#include <algorithm>
#include <cmath>

#include "sim/time/link_cost.h"

namespace droptest::sim {
namespace {

// A wait that is longer than this many slots lets the link forget all the same.
constexpr std::uint64_t kMostIdleSlots = 1'000'000'000;

// Terms of a sum over rounds that no longer change it.
constexpr double kNegligible = 1e-17;

}  // namespace

Delivery deliver_in_rounds(SlotFates& fates, std::uint64_t packets, double slot_seconds,
                           const std::function<double(std::uint64_t)>& wait) {
  Delivery delivery;
  std::uint64_t slot = 0;
  std::uint64_t missing = packets;
  for (std::uint64_t round = 1; missing > 0; ++round) {
    delivery.slots += missing;
    delivery.packets_sent += missing;
    const std::uint64_t lost = fates.lost_count(slot, missing);
    slot += missing;
    missing = lost;
    if (missing == 0) break;
    const double idle_seconds = wait(round);
    slot += std::min(kMostIdleSlots, whole_slots(idle_seconds + slot_seconds / 2, slot_seconds));
    delivery.waiting_seconds += idle_seconds;
    ++delivery.timeouts;
  }
  delivery.slots_passed = slot;
  return delivery;
}

double more_rounds_probability(double p, std::uint64_t packets, std::uint64_t rounds) {
  if (rounds == 0) return 1;
  // In logarithms: for small p^k, 1 - (1 - p^k)^m would lose all digits.
  return -std::expm1(static_cast<double>(packets) * std::log1p(-std::pow(p, static_cast<double>(rounds))));
}

double expected_rounds(double p, std::uint64_t packets) {
  if (packets == 0) return 0;
  double sum = 1;
  for (std::uint64_t k = 1;; ++k) {
    const double term = more_rounds_probability(p, packets, k);
    sum += term;
    if (term < kNegligible * sum) return sum;
  }
}

}  // namespace droptest::sim
