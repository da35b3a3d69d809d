// SPDX-License-Identifier: Apache-2.0
// Protocols that send what is missing round by round: their walk, and the law of the number of rounds.
#pragma once

#include <cstdint>
#include <functional>

#include "sim/time/retransmission.h"

namespace droptest::sim {

/// Sends `packets`, then those that were lost, and so on until none is; wait(k) seconds pass after round k, k >= 1,
/// before the next one. Slots go by meanwhile, so that a burst can end.
Delivery deliver_in_rounds(SlotFates& fates, std::uint64_t packets, double slot_seconds,
                           const std::function<double(std::uint64_t)>& wait);

/// P(more than k rounds) for independent loss: 1 - (1 - p^k)^m.
double more_rounds_probability(double p, std::uint64_t packets, std::uint64_t rounds);

/// E[rounds] = sum over k >= 0 of 1 - (1 - p^k)^m, for p < 1; packets >= 1.
double expected_rounds(double p, std::uint64_t packets);

}  // namespace droptest::sim
