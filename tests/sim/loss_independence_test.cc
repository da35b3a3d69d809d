// SPDX-License-Identifier: Apache-2.0
// Fates of different links, classes, halves, seeds and stretches of a link have nothing to do with each other.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/random/draw_words.h"
#include "sim/random/threshold.h"

namespace droptest::sim::loss_independence_test {
namespace {

constexpr std::uint64_t kPackets = 1 << 20;

struct Flow {
  std::string name;
  std::uint64_t seed;
  Link link;
  std::uint64_t first_packet;
};

/// Neighbours in every field, of which a counter with overlapping or missing fields would mix some up.
std::vector<Flow> flows() {
  using C = TrafficClass;
  return {
      {"base", 1, {C::kTpForward, Half::kReduce, 1, 2}, 0},
      {"seed", 2, {C::kTpForward, Half::kReduce, 1, 2}, 0},
      {"high seed", 1 + (std::uint64_t{1} << 32), {C::kTpForward, Half::kReduce, 1, 2}, 0},
      {"class", 1, {C::kTpBackward, Half::kReduce, 1, 2}, 0},
      {"half", 1, {C::kTpForward, Half::kGather, 1, 2}, 0},
      {"source", 1, {C::kTpForward, Half::kReduce, 0, 2}, 0},
      {"destination", 1, {C::kTpForward, Half::kReduce, 1, 3}, 0},
      {"reversed", 1, {C::kTpForward, Half::kReduce, 2, 1}, 0},
      {"every destination", 1, {C::kTpForward, Half::kReduce, 1, Link::kEveryDestination}, 0},
      {"next stretch", 1, {C::kTpForward, Half::kReduce, 1, 2}, kPackets},
      {"far stretch", 1, {C::kTpForward, Half::kReduce, 1, 2}, std::uint64_t{1} << 34},
      {"shifted by one", 1, {C::kTpForward, Half::kReduce, 1, 2}, 1},
      {"shifted by a block", 1, {C::kTpForward, Half::kReduce, 1, 2}, 4},
  };
}

std::uint64_t lost_in_both(const PacketMask& a, const PacketMask& b) {
  std::uint64_t count = 0;
  for (std::size_t w = 0; w < a.words().size(); ++w) {
    count += static_cast<std::uint64_t>(std::popcount(a.words()[w] & b.words()[w]));
  }
  return count;
}

TEST(LossIndependence, FlowsAreUncorrelated) {
  for (const double p : {0.5, 0.05}) {
    const Bernoulli process(p);
    std::vector<PacketMask> masks;
    for (const Flow& flow : flows()) {
      masks.emplace_back(kPackets);
      process.draw(flow.seed, flow.link, flow.first_packet, masks.back());
    }
    const double n = static_cast<double>(kPackets);
    for (std::size_t a = 0; a < masks.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const double both = static_cast<double>(lost_in_both(masks[a], masks[b]));
        const double covariance =
            both / n - static_cast<double>(masks[a].lost_count()) / n * static_cast<double>(masks[b].lost_count()) / n;
        EXPECT_LT(std::fabs(covariance / (p * (1 - p)) * std::sqrt(n)), 5)
            << flows()[a].name << " and " << flows()[b].name << " at " << p;
      }
    }
  }
}

TEST(LossIndependence, BurstsOfFlowsDoNotMeet) {
  // Whole bursts coincide or not: counts of windows that are far longer than a burst.
  const GilbertElliott process({0.01, 0.25, 0, 1});
  std::vector<std::vector<double>> counts;
  for (const Flow& flow : flows()) {
    if (flow.name.rfind("shifted", 0) == 0) continue;
    PacketMask mask(kPackets);
    process.draw(flow.seed, flow.link, flow.first_packet, mask);
    std::vector<double>& windows = counts.emplace_back();
    for (const std::uint64_t word : mask.words()) windows.push_back(std::popcount(word) - 64.0 / 26);
  }
  for (std::size_t a = 0; a < counts.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      double product = 0, square_a = 0, square_b = 0;
      for (std::size_t w = 0; w < counts[a].size(); ++w) {
        product += counts[a][w] * counts[b][w];
        square_a += counts[a][w] * counts[a][w];
        square_b += counts[b][w] * counts[b][w];
      }
      // Neighbouring windows share a burst now and then, which widens the spread a little: at most by 1.1.
      const double r = product / std::sqrt(square_a * square_b);
      EXPECT_LT(std::fabs(r * std::sqrt(static_cast<double>(counts[a].size()))), 5.5) << a << " and " << b;
    }
  }
}

TEST(LossIndependence, TransitionAndEmissionDrawsDiffer) {
  const Link link{TrafficClass::kTpForward, Half::kReduce, 1, 2};
  PacketMask transition(kPackets), emission(kPackets);
  draws_below(1, link, Purpose::kLossTransition, 0, kCertain / 2, transition.words());
  draws_below(1, link, Purpose::kLossEmission, 0, kCertain / 2, emission.words());
  const double n = static_cast<double>(kPackets);
  EXPECT_LT(std::fabs(static_cast<double>(lost_in_both(transition, emission)) - n / 4) / std::sqrt(n * 3 / 16), 5);
}

}  // namespace
}  // namespace droptest::sim::loss_independence_test
