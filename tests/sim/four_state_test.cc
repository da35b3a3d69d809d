// SPDX-License-Identifier: Apache-2.0
// netem's four states: exact values, a chain that is walked packet by packet, and statistics of drawn fates.
#include "sim/loss/four_state.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/error.h"
#include "sim/loss/burst_histogram.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/sim/naive_fates.h"
#include "tests/sim/vector_file.h"

namespace droptest::sim::four_state_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kGather, 3, 1};

std::vector<FourStateRates> all_rates() {
  return {{0.01, 0.3, 0.2, 0.6, 0.002}, {0.05, 0.25, 0, 1, 0},   {0, 1, 0, 1, 0.1},
          {0.02, 0.1, 0.85, 0.3, 0.05}, {0.3, 0.6, 0.3, 1, 0.6}, {0.001, 0.02, 0.01, 0.005, 0.01},
          {0.4, 0.9, 0.05, 0.5, 0.3}};
}

using Transitions = std::array<std::array<double, 4>, 4>;
Transitions chain_of(const FourStateRates& c) {
  return {{{1 - c.p13 - c.p14, 0, c.p13, c.p14},
           {0, 1 - c.p23, c.p23, 0},
           {c.p31, c.p32, 1 - c.p31 - c.p32, 0},
           {1, 0, 0, 0}}};
}

TEST(FourState, EqualsTheExactValues) {
  const nlohmann::json set = read_vectors("four_state.json");
  const auto rates = set["rates"];
  const FourState process({rates["p13"], rates["p31"], rates["p32"], rates["p23"], rates["p14"]});
  EXPECT_NEAR(process.loss_rate(), set["p_E"].get<double>(), 1e-10);
  EXPECT_NEAR(process.mean_burst_packets(), set["mean_loss_run"].get<double>(), 1e-9);
}

TEST(FourState, SharesAreStationary) {
  for (const FourStateRates& rates : all_rates()) {
    const FourState process(rates);
    const Transitions p = chain_of(rates);
    for (std::size_t j = 0; j < 4; ++j) {
      double share = 0;
      for (std::size_t i = 0; i < 4; ++i) share += process.shares()[i] * p[i][j];
      EXPECT_NEAR(share, process.shares()[j], 1e-15) << process.describe();
    }
    EXPECT_NEAR(process.mean_burst_packets() / process.mean_gap_packets(),
                process.loss_rate() / (1 - process.loss_rate()), 1e-12);
  }
}

/// P(lost at 0 and at j), by moving the shares of a lost packet along.
std::vector<double> joint_losses(const FourState& process, const FourStateRates& rates, int n) {
  const Transitions p = chain_of(rates);
  std::array<double, 4> shares = {0, 0, process.shares()[2], process.shares()[3]};
  std::vector<double> joint;
  for (int j = 0; j < n; ++j) {
    joint.push_back(shares[2] + shares[3]);
    std::array<double, 4> moved{};
    for (std::size_t a = 0; a < 4; ++a) {
      for (std::size_t b = 0; b < 4; ++b) moved[b] += shares[a] * p[a][b];
    }
    shares = moved;
  }
  return joint;
}

TEST(FourState, CountVarianceIsTheSumOverPairs) {
  for (const FourStateRates& rates : all_rates()) {
    const FourState process(rates);
    const double lost = process.loss_rate();
    const std::vector<double> joint = joint_losses(process, rates, 700);
    for (const int n : {1, 2, 3, 7, 64, 700}) {
      double variance = n * lost * (1 - lost);
      for (int j = 1; j < n; ++j) variance += 2 * (n - j) * (joint[static_cast<std::size_t>(j)] - lost * lost);
      EXPECT_NEAR(process.lost_count_variance(static_cast<std::uint64_t>(n)), variance, 1e-10 * variance + 1e-13)
          << process.describe() << " n=" << n;
    }
    EXPECT_EQ(process.lost_count_variance(0), 0);
    const double variance = lost * (1 - lost);
    EXPECT_NEAR(process.autocorrelation(5), (joint[5] - lost * lost) / variance, 1e-12);
  }
}

TEST(FourState, WithoutItsExtrasItIsSimpleGilbert) {
  const FourState process({0.01, 0.125, 0, 1, 0});
  const GilbertElliott gilbert({0.01, 0.125, 0, 1});
  EXPECT_NEAR(process.loss_rate(), gilbert.loss_rate(), 1e-15);
  EXPECT_NEAR(process.mean_burst_packets(), 8, 1e-13);
  EXPECT_NEAR(process.mean_gap_packets(), 100, 1e-11);
  EXPECT_NEAR(process.burst_at_least(9), gilbert.burst_at_least(9), 1e-14);
  for (const std::uint64_t n : {1U, 50U, 1000U, 1000000U}) {
    EXPECT_NEAR(process.lost_count_variance(n) / gilbert.lost_count_variance(n), 1, 1e-11);
  }
}

/// The state after a packet, as netem's loss_4state() moves, with the draw cut as docs/fates.md says.
unsigned moved(const FourStateRates& c, unsigned state, std::uint32_t draw) {
  const double u = draw / 4294967296.0;
  if (state == 1) return u < c.p13 ? 3 : u < c.p13 + c.p14 ? 4 : 1;
  if (state == 2) return u < c.p23 ? 3 : 2;
  if (state == 3) return u < 1 - c.p31 - c.p32 ? 3 : u < 1 - c.p31 ? 2 : 1;
  return 1;
}

TEST(FourState, EveryStartLeadsToTheDrawnFates) {
  for (const FourStateRates& rates : all_rates()) {
    const FourState process(rates);
    constexpr std::uint64_t kFirst = 100003;
    constexpr std::uint64_t kPackets = 1000;
    PacketMask lost(kPackets);
    process.draw(9, kLink, kFirst, lost);
    for (unsigned start = 1; start <= 4; ++start) {
      if (process.shares()[start - 1] == 0) continue;
      unsigned state = start;
      for (std::uint64_t packet = kFirst - 20000; packet < kFirst + kPackets; ++packet) {
        state = moved(rates, state, naive_draw(9, kLink, Purpose::kLossTransition, packet));
        if (packet >= kFirst) {
          ASSERT_EQ(lost.lost(packet - kFirst), state >= 3) << process.describe() << " " << packet << " from " << start;
        }
      }
    }
  }
}

TEST(FourState, CountsDeviateAsTheirVarianceSays) {
  for (const FourStateRates& rates : all_rates()) {
    const FourState process(rates);
    constexpr int kStreams = 100;
    constexpr std::uint64_t kPackets = 20000;
    double sum = 0;
    double squares = 0;
    double bursts = 0;
    double lost = 0;
    for (int stream = 0; stream < kStreams; ++stream) {
      PacketMask mask(kPackets);
      process.draw(static_cast<std::uint64_t>(stream), kLink, 0, mask);
      const double z = (static_cast<double>(mask.lost_count()) - kPackets * process.loss_rate()) /
                       std::sqrt(process.lost_count_variance(kPackets));
      sum += z;
      squares += z * z;
      BurstHistogram histogram;
      histogram.add(mask);
      bursts += static_cast<double>(histogram.bursts());
      lost += static_cast<double>(mask.lost_count());
    }
    EXPECT_LT(std::fabs(sum / kStreams), 4 / std::sqrt(kStreams)) << process.describe();
    EXPECT_NEAR(std::sqrt(squares / kStreams), 1, 0.3) << process.describe();
    EXPECT_NEAR(lost / bursts / process.mean_burst_packets(), 1, 0.05) << process.describe();
  }
}

TEST(FourState, IsStationaryFromTheFirstPacket) {
  const FourState process({0.02, 0.1, 0.3, 0.2, 0.01});
  constexpr int kStreams = 40000;
  int lost = 0;
  PacketMask one(1);
  for (int stream = 0; stream < kStreams; ++stream) {
    process.draw(static_cast<std::uint64_t>(stream), kLink, 0, one);
    lost += one.lost(0) ? 1 : 0;
  }
  const double p = process.loss_rate();
  EXPECT_LT(std::fabs(lost - kStreams * p), 4 * std::sqrt(kStreams * p * (1 - p)));
}

std::string error_of(const FourStateRates& rates) {
  try {
    const FourState process(rates);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(FourState, ImpossibleChainsAreRefused) {
  EXPECT_EQ(error_of({0.6, 0.5, 0, 1, 0.5}), "four_state: p13 + p14: got 1.1, want a number in [0, 1]");
  EXPECT_EQ(error_of({0.1, 0.7, 0.4, 1, 0}), "four_state: p31 + p32: got 1.1, want a number in [0, 1]");
  EXPECT_EQ(error_of({0.1, 0, 0.5, 1, 0}),
            "four_state: p31: got 0, want a number above 0, as p13 is: else a burst never ends");
  EXPECT_EQ(error_of({0.1, 0.2, 0.5, 0, 0}),
            "four_state: p23: got 0, want a number above 0, as p32 is: else deliveries within a burst never end");
  // Loses exactly every other packet.
  EXPECT_NE(error_of({0.3, 0.7, 0.3, 1, 0.7}).find("alternates for ever"), std::string::npos);
  EXPECT_EQ(error_of({1, 1, 0, 1, 0}),
            "four_state: got a chain that alternates for ever, want one that does within 1000000 packets");
  EXPECT_NE(error_of({1e-9, 1e-8, 0, 1, 0}).find("shows its state after"), std::string::npos);
  EXPECT_NE(error_of({1e-12, 0.5, 0, 1, 0}).find("p13: got 1e-12"), std::string::npos);
}

TEST(FourState, MeanLookBackIsThatOfKnownChains) {
  // Two states with p + r <= 1: the maps agree at a packet with probability p + r.
  EXPECT_NEAR(FourState({0.1, 0.3, 0, 1, 0}).mean_look_back(), 1 / 0.4, 1e-6);
  // Only states 1 and 4: they agree unless the draw is below p14.
  EXPECT_NEAR(FourState({0, 1, 0, 1, 0.25}).mean_look_back(), 1 / 0.75, 1e-6);
}

}  // namespace
}  // namespace droptest::sim::four_state_test
