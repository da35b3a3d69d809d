// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/timed_gilbert_elliott.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "sim/error.h"
#include "sim/loss/lost_count_theory.h"

namespace droptest::sim::timed_gilbert_elliott_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kReduce, 0, 1};
const TimedRates kRates{100, 10, 0.5, 20, 0, 1};

// Correlation of the states of two packets that leave that many microseconds apart.
double state_correlation(const TimedRates& rates, double microseconds) {
  return std::exp(-microseconds * (1 / rates.mean_good_microseconds + 1 / rates.mean_bad_microseconds));
}

TEST(TimedGilbertElliott, HasTheLawOfTheContinuousChain) {
  const TimedGilbertElliott process(kRates);
  EXPECT_NEAR(process.loss_rate(), 10.0 / 110, 1e-15);
  const double lambda = state_correlation(kRates, 0.5);
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
  // Message 3 after 120 packets: 120 + 3 gaps of 40 packet times.
  PacketMask message(100);
  process.draw_message(7, kLink, {120, 0, 3, {}}, message);
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(message.lost(i), line.lost(240 + i));
  // If time begins with each message, it counts from the message's origin.
  process.draw_message(7, kLink, {55, 240, 1, PacketTimes{0.5}}, message);
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(message.lost(i), line.lost(240 + i));
  process.draw_message(7, kLink, {55, 240, 1, PacketTimes{0.5, {}, 30}}, message);
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(message.lost(i), line.lost(270 + i));
}

TEST(TimedGilbertElliott, ALinkWithPacketTimesOfItsOwnHasTheirChain) {
  TimedRates rates = kRates;
  rates.packet_microseconds = 4;
  const TimedGilbertElliott slow(rates);
  PacketMask expected(500), got(500);
  slow.draw_message(7, kLink, {0, 90, 0, PacketTimes{4}}, expected);
  const TimedGilbertElliott process(kRates);
  process.draw_message(7, kLink, {0, 90, 0, PacketTimes{4}}, got);
  for (std::uint64_t i = 0; i < 500; ++i) ASSERT_EQ(got.lost(i), expected.lost(i));
  EXPECT_EQ(process.message_count(7, kLink, {0, 90, 0, PacketTimes{4}}, 500).variance,
            slow.message_count(7, kLink, {0, 90, 0, PacketTimes{4}}, 500).variance);
}

PacketMask by_clock(const TimedGilbertElliott& process, const Link& link, const PacketTimes& times,
                    std::uint64_t packets, std::uint64_t first_packet = 0, std::uint64_t seed = 7) {
  PacketMask lost(packets);
  process.draw_message(seed, link, {first_packet, 0, 0, times}, lost);
  return lost;
}

const Link kOtherUser{TrafficClass::kDpGradient, Half::kGather, 0, 1};

TEST(TimedGilbertElliott, AnEpisodeHitsAllUsersOfTheLink) {
  const TimedGilbertElliott process({100, 100, 0.5, 0, 0, 1, 2});
  const PacketMask lost = by_clock(process, kLink, {0.5, 40.0}, 4000);
  EXPECT_EQ(by_clock(process, kOtherUser, {0.5, 40.0}, 4000, 77), lost);
  // The same times in another way: a repetition, and packets that are further apart.
  const PacketMask later = by_clock(process, kOtherUser, {0.5, 30.0, 220}, 3000);
  const PacketMask wide = by_clock(process, kLink, {5, 40.0}, 400);
  for (std::uint64_t i = 0; i < 3000; ++i) ASSERT_EQ(later.lost(i), lost.lost(200 + i));
  for (std::uint64_t i = 0; i < 400; ++i) ASSERT_EQ(wide.lost(i), lost.lost(10 * i));
  // Each direction, and a stopped clock, has its own states: two independent halves agree in one half of the cases.
  const Link back{kLink.traffic_class, kLink.half, 1, 0};
  for (const PacketMask& other :
       {by_clock(process, back, {500, 40.0}, 4000), by_clock(process, kLink, {500, 40.0, 0, true}, 4000)}) {
    const PacketMask same_times = by_clock(process, kLink, {500, 40.0}, 4000);
    std::uint64_t agree = 0;
    for (std::uint64_t i = 0; i < 4000; ++i) agree += other.lost(i) == same_times.lost(i) ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(agree), 2000, 4 * std::sqrt(4000) / 2);
  }
}

TEST(TimedGilbertElliott, PacketsOfOneTickShareItsStateAndHaveLossesOfTheirOwn) {
  const TimedRates rates{100, 100, 0.01, 0, 0, 1, 1};
  TimedRates noisy = rates;
  noisy.loss_good = 0.2;
  noisy.loss_bad = 0.7;
  const PacketMask states = by_clock(TimedGilbertElliott(rates), kLink, {0.01, 0.0}, 100000);
  const TimedGilbertElliott process(noisy);
  const PacketMask lost = by_clock(process, kLink, {0.01, 0.0}, 100000);
  const PacketMask of_other = by_clock(process, kOtherUser, {0.01, 0.0}, 100000);
  std::array<double, 2> packets{}, losses{}, both{};
  for (std::uint64_t i = 0; i < states.size(); ++i) {
    // In double, 0.01 i may lie on either side of a tick.
    if (i % 100 > 1) {
      ASSERT_EQ(states.lost(i), states.lost(i / 100 * 100 + 1)) << i;
    }
    const std::size_t state = states.lost(i) ? 1 : 0;
    packets[state] += 1;
    losses[state] += lost.lost(i) ? 1 : 0;
    both[state] += lost.lost(i) && of_other.lost(i) ? 1 : 0;
  }
  for (const std::size_t state : {0U, 1U}) {
    const double p = state == 0 ? 0.2 : 0.7;
    EXPECT_NEAR(losses[state] / packets[state], p, 4 * std::sqrt(p * (1 - p) / packets[state]));
    EXPECT_NEAR(both[state] / packets[state], p * p, 4 * std::sqrt(p * p * (1 - p * p) / packets[state]));
  }
}

// A stay of ten seconds is 10^8 packets of 100 Gb/s.
TEST(TimedGilbertElliott, StaysMayBeLongAgainstPackets) {
  const TimedGilbertElliott process({1e7, 1e7, 0.12, 0, 0, 1, default_tick_microseconds(1e7, 1e7)});
  EXPECT_NEAR(process.mean_burst_packets(), 1e7 / 0.12, 10);
  double lost = 0;
  for (int seed = 0; seed < 400; ++seed) {
    const PacketMask mask = by_clock(process, kLink, {0.12, 3e8}, 1000, 0, static_cast<std::uint64_t>(seed));
    EXPECT_TRUE(mask.lost_count() == 0 || mask.lost_count() == 1000);
    lost += mask.lost(0) ? 1 : 0;
  }
  EXPECT_NEAR(lost, 200, 4 * std::sqrt(400) / 2);
}

// Messages at uneven times; some of their packets share a tick with the previous message.
TEST(TimedGilbertElliott, VarianceOfTheClockIsThatOfTheTicks) {
  const TimedRates rates{30, 10, 0.3, 0, 0.05, 0.9, 1};
  const TimedGilbertElliott process(rates);
  const double lambda = std::exp(-(1 / 30.0 + 1 / 10.0));
  const double between = 30.0 * 10 / (40 * 40) * 0.85 * 0.85;
  const std::vector<std::pair<double, std::uint64_t>> messages = {{0, 5}, {1.2, 9}, {3.8, 1}, {900, 20}};
  std::vector<double> ticks;
  LostCountTheory theory;
  std::uint64_t packets = 0;
  for (const auto& [departs, count] : messages) {
    theory.add(process, 0, 1, kLink, {packets, 0, 0, PacketTimes{0.3, departs}}, count);
    for (std::uint64_t i = 0; i < count; ++i) ticks.push_back(std::floor(departs + static_cast<double>(i) * 0.3));
    packets += count;
  }
  const double p = process.loss_rate();
  double variance = 0;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    for (std::size_t j = 0; j < ticks.size(); ++j) {
      variance += i == j ? p * (1 - p) : between * std::pow(lambda, std::fabs(ticks[i] - ticks[j]));
    }
  }
  EXPECT_NEAR(theory.total().mean, p * static_cast<double>(packets), 1e-12);
  EXPECT_NEAR(theory.total().variance, variance, 1e-10 * variance);
}

// The variance of z over seeds; the fourth moment of z is taken as a normal one's.
TEST(TimedGilbertElliott, CountsByTheClockDeviateAsTheirVarianceSays) {
  for (const double tick : {0.05, 1.0, 20.0}) {
    const TimedGilbertElliott process({200, 20, 1, 0, 0.001, 0.8, tick});
    constexpr int kStreams = 600;
    double squares = 0;
    for (std::uint64_t stream = 0; stream < kStreams; ++stream) {
      LostCountTheory theory;
      double lost = 0;
      for (std::uint64_t m = 0; m < 200; ++m) {
        const PacketTimes times{m % 3 == 0 ? 0.1 : 1.0, 60.0 * static_cast<double>(m - m % 2) + (m % 2 == 0 ? 0 : 26)};
        lost += static_cast<double>(by_clock(process, kLink, times, 25, 25 * m, stream).lost_count());
        theory.add(process, 0, stream, kLink, {25 * m, 0, 0, times}, 25);
      }
      const double z = (lost - theory.total().mean) / std::sqrt(theory.total().variance);
      squares += z * z;
    }
    EXPECT_NEAR(squares / kStreams, 1, 4 * std::sqrt(2.0 / kStreams)) << tick;
  }
}

/// The fraction of pairs (last packet of a message, first packet of the next) with equal fates, and its theory.
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
    const double expected = p * p + p * (1 - p) * state_correlation(rates, 0.5 + gap);
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
      for (const double b : times) variance += p * (1 - p) * state_correlation(rates, std::fabs(a - b));
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
      const MessagePosition place{25 * m, 0, m, {}};
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
  EXPECT_NE(error_of({10, 10, 1e-8, 1e12, 0, 1, 1}).find("gap_microseconds: got 1e+12"), std::string::npos);
  EXPECT_NE(error_of({10, 10, 1, 0, 0, 2}).find("loss_bad: got 2"), std::string::npos);
  EXPECT_NE(error_of({10, 10, 1, 0, 0, 1, -1}).find("tick_microseconds: got -1"), std::string::npos);
  EXPECT_NE(error_of({10, 10, 1, 0, 0, 1, 1e-6}).find("tick_microseconds: got 1e-06, want at least a millionth"),
            std::string::npos);
  EXPECT_NE(error_of({10, 10, 1, 0, 0, 1e-12, 1}).find("loss_bad: got 1e-12"), std::string::npos);
}

}  // namespace
}  // namespace droptest::sim::timed_gilbert_elliott_test
