// SPDX-License-Identifier: Apache-2.0
// The draws of a link, 64 packets at a time, as bit masks: the inner loop of every loss process.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "sim/loss/link.h"
#include "sim/random/philox.h"

namespace droptest::sim {

/// Compares the draws of packets 64 * first_word onwards with a threshold (threshold.h).
/// Bit i of below[w] is set iff the draw of packet 64 * (first_word + w) + i is below `threshold`, at most kCertain.
/// Words are counted modulo 2^58, as packets are modulo 2^64.
void draws_below(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first_word,
                 std::uint64_t threshold, std::span<std::uint64_t> below);

/// Compares the same draws with two thresholds at once. Shapes: both spans have equal length.
void draws_below(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first_word,
                 std::uint64_t threshold_a, std::span<std::uint64_t> below_a, std::uint64_t threshold_b,
                 std::span<std::uint64_t> below_b);

/// The draws of packets 64 * word onwards.
std::array<std::uint32_t, 64> draw_values(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t word);

/// Sum over i, modulo 2^64, of contents[i] mixed with its place: half a Philox block, a bijection of the counter (place
/// and link) under the key (content). Shapes: both spans have equal length.
std::uint64_t sum_of_mixed(const Link& link, Purpose purpose, std::span<const std::uint64_t> places,
                           std::span<const std::uint64_t> contents);

}  // namespace droptest::sim
