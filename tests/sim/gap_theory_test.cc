// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/gap_theory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "sim/loss/bernoulli.h"
#include "sim/loss/burst_histogram.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/no_loss.h"

namespace droptest::sim::gap_theory_test {
namespace {

TEST(GapTheory, ShortStretchesAreExact) {
  // Five packets at p = 0.3: three places for (lost, delivered, lost), two for a gap of 2 packets, one for 3.
  const double p = 0.3;
  const double q = 1 - p;
  const std::vector<double> expected = expected_gaps(Bernoulli(p), {{5, 1}}, 4);
  ASSERT_EQ(expected.size(), 4U);
  EXPECT_NEAR(expected[0], 3 * p * q * p, 1e-15);
  EXPECT_NEAR(expected[1], 2 * p * q * q * p + p * q * q * q * p, 1e-15);
  EXPECT_EQ(expected[2], 0);
  // Stretches add up; those of fewer than three packets have no room for a gap.
  EXPECT_NEAR(expected_gaps(Bernoulli(p), {{1, 9}, {2, 9}, {5, 7}}, 4)[0], 7 * 3 * p * q * p, 1e-14);
}

TEST(GapTheory, LongStretchesAreTheSumOverLengths) {
  const GilbertElliott noisy({0.001, 0.05, 0.0005, 0.7});
  const GilbertElliott bursty(rates_of_burst(0.0001, 20));
  const Bernoulli rare(1e-6);
  constexpr std::uint64_t kPackets = 30000;
  for (const LossProcess* process : {static_cast<const LossProcess*>(&noisy), static_cast<const LossProcess*>(&bursty),
                                     static_cast<const LossProcess*>(&rare)}) {
    const double ends = process->loss_rate() / process->mean_burst_packets();
    const std::vector<double> expected = expected_gaps(*process, {{kPackets, 2}}, 16);
    for (std::size_t bin = 0; bin < expected.size(); ++bin) {
      double sum = 0;
      for (std::uint64_t m = std::uint64_t{1} << bin; m < std::uint64_t{2} << bin && m + 2 <= kPackets; ++m) {
        const double share = process->gap_at_least(m) - process->gap_at_least(m + 1);
        sum += 2 * ends * static_cast<double>(kPackets - 1 - m) * share;
      }
      // Pieces of a mixture of two geometric laws are not quite geometric; differences of tails round.
      EXPECT_NEAR(expected[bin], sum, 2e-3 * sum + 1e-9) << process->describe() << " bin " << bin;
    }
  }
}

TEST(GapTheory, WhatIsLostEntirelyOrNotAtAllHasNoGaps) {
  EXPECT_EQ(expected_gaps(NoLoss(), {{100, 1}}, 3).size(), 3U);
  for (const double p : {0.0, 1.0}) {
    for (const double expected : expected_gaps(Bernoulli(p), {{100, 1}}, 7)) EXPECT_EQ(expected, 0) << p;
  }
}

TEST(GapTheory, DrawnGapsFollowIt) {
  // The number of gaps in a bin is nearly Poisson; in the bursts of the noisy chain they come in clusters of up to
  // three. So 4 standard deviations are at most 4 sqrt(3) square roots of the number expected.
  const double limit = 4 * std::sqrt(3.0);
  const std::vector<std::shared_ptr<const LossProcess>> processes = {
      std::make_shared<Bernoulli>(0.01), std::make_shared<Bernoulli>(0.3),
      std::make_shared<GilbertElliott>(rates_of_burst(0.05, 8)),
      std::make_shared<GilbertElliott>(GilbertElliottRates{0.02, 0.2, 0.005, 0.6})};
  for (const auto& process : processes) {
    // Long stretches, and messages so short that most gaps do not fit.
    for (const auto& [packets, messages] : std::vector<std::pair<std::uint64_t, int>>{{200000, 10}, {40, 40000}}) {
      BurstHistogram histogram;
      PacketMask lost(packets);
      for (int message = 0; message < messages; ++message) {
        process->draw(77, {TrafficClass::kTpForward, Half::kReduce, 0, 1}, static_cast<std::uint64_t>(message) << 32,
                      lost);
        histogram.interrupt();
        histogram.add(lost);
      }
      const std::vector<double> expected = expected_gaps(*process, histogram.stretches(), 20);
      double all = 0;
      double counted = 0;
      for (std::size_t bin = 0; bin < expected.size(); ++bin) {
        const double count = bin < histogram.gaps().size() ? static_cast<double>(histogram.gaps()[bin]) : 0;
        all += expected[bin];
        counted += count;
        if (expected[bin] < 10) continue;
        EXPECT_LT(std::fabs(count - expected[bin]) / std::sqrt(expected[bin]), limit)
            << process->describe() << " bin " << bin << ": " << count << " of " << expected[bin];
      }
      EXPECT_GT(all, 100);
      EXPECT_LT(std::fabs(counted - all) / std::sqrt(all), limit) << process->describe();
    }
  }
}

TEST(GapTheory, AProcessThatDoesNotKnowItsGapsSaysSo) {
  class Unknown final : public LossProcess {
   public:
    void draw(std::uint64_t, const Link&, std::uint64_t, PacketMask&) const override {}
    double loss_rate() const override { return 0.5; }
    double mean_burst_packets() const override { return 2; }
    double mean_gap_packets() const override { return 2; }
    double burst_at_least(std::uint64_t) const override { return 1; }
    double lost_count_variance(std::uint64_t) const override { return 1; }
    std::string describe() const override { return "unknown"; }
  };
  for (const double expected : expected_gaps(Unknown(), {{100, 1}}, 3)) EXPECT_TRUE(std::isnan(expected));
}

}  // namespace
}  // namespace droptest::sim::gap_theory_test
