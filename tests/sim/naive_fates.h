// SPDX-License-Identifier: Apache-2.0
// The simplest implementation of docs/fates.md, one packet at a time: the reference for masks.
#pragma once

#include <cmath>
#include <cstdint>

#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/link.h"
#include "sim/loss/packet_mask.h"
#include "sim/random/philox.h"

namespace droptest::sim {

inline std::uint32_t naive_draw(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t packet) {
  return philox(seed, link_counter(link, purpose, packet / 4))[packet % 4];
}

/// Whether a draw is below a probability, compared as 64-bit integers.
inline bool naive_below(std::uint64_t draw, double p) {
  return draw < static_cast<std::uint64_t>(std::floor(std::ldexp(p, 32)));
}

inline bool naive_bad(const GilbertElliottRates& rates, std::uint64_t seed, const Link& link, std::uint64_t packet) {
  for (bool swapped = false;; --packet) {
    const std::uint64_t draw = naive_draw(seed, link, Purpose::kLossTransition, packet);
    // The draws from the top: the last r * 2^32 of them lead from bad to good.
    const bool from_good_to_bad = naive_below(draw, rates.p_good_to_bad);
    const bool from_bad_to_good = naive_below((std::uint64_t{1} << 32) - 1 - draw, rates.p_bad_to_good);
    if (from_good_to_bad && !from_bad_to_good) return !swapped;
    if (!from_good_to_bad && from_bad_to_good) return swapped;
    if (from_good_to_bad) swapped = !swapped;
  }
}

inline bool naive_lost(const GilbertElliottRates& rates, std::uint64_t seed, const Link& link, std::uint64_t packet) {
  const double loss = naive_bad(rates, seed, link, packet) ? rates.loss_bad : rates.loss_good;
  return naive_below(naive_draw(seed, link, Purpose::kLossEmission, packet), loss);
}

inline PacketMask naive_mask(const GilbertElliottRates& rates, std::uint64_t seed, const Link& link,
                             std::uint64_t first_packet, std::uint64_t packets) {
  PacketMask lost(packets);
  for (std::uint64_t i = 0; i < packets; ++i) {
    if (naive_lost(rates, seed, link, first_packet + i)) lost.set_lost(i);
  }
  return lost;
}

}  // namespace droptest::sim
