// SPDX-License-Identifier: Apache-2.0
// Probabilities as integers that 32-bit draws are compared with.
#pragma once

#include <cstdint>

namespace droptest::sim {

/// The threshold of a draw that is always below it.
inline constexpr std::uint64_t kCertain = std::uint64_t{1} << 32;

/// The smallest probability above 0 that a 32-bit draw can express: 2^-32.
inline constexpr double kSmallestProbability = 1.0 / 4294967296.0;

/// floor(p * 2^32): a 32-bit draw u means "yes" iff u < threshold, with 64-bit operands.
/// p = 0 is never, p = 1 always, and no p < 1 is always. `p` is in [0, 1]; the product is exact, and so is the floor.
constexpr std::uint64_t probability_threshold(double p) { return static_cast<std::uint64_t>(p * 4294967296.0); }

}  // namespace droptest::sim
