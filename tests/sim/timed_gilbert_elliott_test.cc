// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/timed_gilbert_elliott.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sim/error.h"
#include "sim/loss/lost_count_theory.h"

namespace droptest::sim::timed_gilbert_elliott_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kReduce, 0, 1};
const TimedRates kRates{100, 10, 0.5, 20, 0, 1};

TEST(TimedGilbertElliott, HasTheLawOfTheContinuousChain) {
  const TimedGilbertElliott process(kRates);
  EXPECT_NEAR(process.loss_rate(), 10.0 / 110, 1e-15);
  EXPECT_EQ(process.gap_ticks(), 40U);
  const double lambda = std::exp(-0.5 * (1 / 100.0 + 1 / 10.0));
  EXPECT_NEAR(process.state_correlation(0.5), lambda, 1e-15);
  // A burst ends with P(bad to good within a packet) = (1 - lambda) G / (G + B).
  EXPECT_NEAR(process.mean_burst_packets(), 1 / ((1 - lambda) * 100 / 110), 1e-12);
  EXPECT_NEAR(process.mean_gap_packets(), 1 / ((1 - lambda) * 10 / 110), 1e-10);
}

TEST(TimedGilbertElliott, LosesInTheStatesAsItIsTold) {
  TimedRates rates = kRates;
  rates.loss_good = 0.01;
  rates.loss_bad = 0.5;
  EXPECT_NEAR(TimedGilbertElliott(rates).loss_rate(), (100 * 0.01 + 10 * 0.5) / 110, 1e-15);
}

TEST(TimedGilbertElliott, APacketIsSentAtItsTime) {
  const TimedGilbertElliott process(kRates);
  PacketMask line(1000);
  process.draw(7, kLink, 0, line);
  // Message 3 after 120 packets: 120 + 3 gaps of 40 ticks.
  PacketMask message(100);
  process.draw_message(7, kLink, {120, 0, 3, {}}, message);
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(message.lost(i), line.lost(240 + i));
  // The same by a clock, whatever the index is.
  process.draw_message(7, kLink, {55, 0, 1, PacketTicks{240, 0.5}}, message);
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(message.lost(i), line.lost(240 + i));
}

TEST(TimedGilbertElliott, ALinkWithTicksOfItsOwnHasTheirChain) {
  TimedRates rates = kRates;
  rates.packet_microseconds = 4;
  const TimedGilbertElliott slow(rates);
  PacketMask expected(500), got(500);
  slow.draw_message(7, kLink, {0, 0, 0, PacketTicks{90, 4}}, expected);
  const TimedGilbertElliott process(kRates);
  process.draw_message(7, kLink, {0, 0, 0, PacketTicks{90, 4}}, got);
  for (std::uint64_t i = 0; i < 500; ++i) ASSERT_EQ(got.lost(i), expected.lost(i));
  EXPECT_EQ(process.message_count(7, kLink, {0, 0, 0, PacketTicks{90, 4}}, 500).variance,
            slow.message_count(7, kLink, {0, 0, 0, PacketTicks{90, 4}}, 500).variance);
}

/// Fraction of pairs (last packet of a message, first of the next) whose fates agree, and its theory.
TEST(TimedGilbertElliott, TheGapForgets) {
  for (const double gap : {0.0, 5.0, 50.0}) {
    TimedRates rates = kRates;
    rates.gap_microseconds = gap;
    const TimedGilbertElliott process(rates);
    constexpr std::uint64_t kMessages = 200000;
    double both = 0;
    PacketMask first(2), next(2);
    process.draw_message(3, kLink, {0, 0, 0, {}}, first);
    for (std::uint64_t m = 1; m <= kMessages; ++m) {
      process.draw_message(3, kLink, {2 * m, 0, m, {}}, next);
      both += first.lost(1) && next.lost(0) ? 1 : 0;
      std::swap(first, next);
    }
    const double p = process.loss_rate();
    const double expected = p * p + p * (1 - p) * process.state_correlation(0.5 + gap);
    // Pairs are correlated over some 9 us / 1 us messages at most: a standard error with 10 times the variance.
    EXPECT_NEAR(both / kMessages, expected, 4 * std::sqrt(10 * expected / kMessages)) << gap;
  }
}

TEST(TimedGilbertElliott, VarianceHoldsTheCorrelationBetweenMessages) {
  for (const double gap : {0.0, 2.0, 1000.0}) {
    TimedRates rates = kRates;
    rates.gap_microseconds = gap;
    const TimedGilbertElliott process(rates);
    const std::vector<std::uint64_t> sizes = {3, 10, 1, 25};
    std::vector<double> times;
    LostCountTheory theory;
    std::uint64_t packets = 0;
    for (std::size_t m = 0; m < sizes.size(); ++m) {
      theory.add(process, 0, 1, kLink, {packets, 0, m, {}}, sizes[m]);
      for (std::uint64_t i = 0; i < sizes[m]; ++i) {
        times.push_back(0.5 * static_cast<double>(packets + i) + gap * static_cast<double>(m));
      }
      packets += sizes[m];
    }
    const double p = process.loss_rate();
    double variance = 0;
    for (const double a : times) {
      for (const double b : times) variance += p * (1 - p) * process.state_correlation(std::fabs(a - b));
    }
    EXPECT_NEAR(theory.total().mean, p * static_cast<double>(packets), 1e-12);
    EXPECT_NEAR(theory.total().variance, variance, 1e-10 * variance) << gap;
  }
}

TEST(TimedGilbertElliott, CountsOfMessagesDeviateAsTheirVarianceSays) {
  const TimedGilbertElliott process({200, 20, 1, 30, 0.001, 0.8});
  constexpr int kStreams = 300;
  double sum = 0;
  double squares = 0;
  for (int stream = 0; stream < kStreams; ++stream) {
    LostCountTheory theory;
    double lost = 0;
    PacketMask mask(25);
    for (std::uint64_t m = 0; m < 400; ++m) {
      const MessagePlace place{25 * m, 0, m, {}};
      process.draw_message(static_cast<std::uint64_t>(stream), kLink, place, mask);
      theory.add(process, 0, static_cast<std::uint64_t>(stream), kLink, place, 25);
      lost += static_cast<double>(mask.lost_count());
    }
    const double z = (lost - theory.total().mean) / std::sqrt(theory.total().variance);
    sum += z;
    squares += z * z;
  }
  EXPECT_LT(std::fabs(sum / kStreams), 4 / std::sqrt(kStreams));
  EXPECT_NEAR(std::sqrt(squares / kStreams), 1, 4 / std::sqrt(2 * kStreams));
}

std::string error_of(const TimedRates& rates) {
  try {
    const TimedGilbertElliott process(rates);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TimedGilbertElliott, WrongTimesAreErrors) {
  EXPECT_EQ(error_of({0, 10, 1, 0, 0, 1}),
            "timed_gilbert_elliott: mean_good_microseconds: got 0, want a number in (0, 1e12]");
  EXPECT_EQ(error_of({10, -1, 1, 0, 0, 1}),
            "timed_gilbert_elliott: mean_bad_microseconds: got -1, want a number in (0, 1e12]");
  EXPECT_EQ(error_of({10, 10, 0, 0, 0, 1}),
            "timed_gilbert_elliott: packet_microseconds: got 0, want a number in (0, 1e12]");
  EXPECT_NE(error_of({1e9, 1e9, 1, 0, 0, 1}).find("at least a millionth of the shorter mean stay"), std::string::npos);
  EXPECT_NE(error_of({10, 10, 1, -1, 0, 1}).find("gap_microseconds: got -1"), std::string::npos);
  EXPECT_NE(error_of({10, 10, 1, 0, 0, 2}).find("loss_bad: got 2"), std::string::npos);
}

}  // namespace
}  // namespace droptest::sim::timed_gilbert_elliott_test
