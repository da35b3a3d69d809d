// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/pattern.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "sim/error.h"

namespace droptest::sim::pattern_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kReduce, 0, 1};

std::string bits(const LossProcess& process, const MessagePosition& place, std::uint64_t packets) {
  PacketMask lost(packets);
  process.draw_message(1, kLink, place, lost);
  std::string text;
  for (std::uint64_t i = 0; i < packets; ++i) text += lost.lost(i) ? '1' : '0';
  return text;
}

TEST(Pattern, EveryNthPacketFromTheOffset) {
  EXPECT_EQ(bits(Pattern(1, 3, 0), {0, 0, 0, {}}, 10), "1000100010");
  EXPECT_EQ(bits(Pattern(1, 3, 2), {0, 0, 0, {}}, 10), "0010001000");
  EXPECT_EQ(bits(Pattern(1, 3, 2), {5, 0, 0, {}}, 6), "010001");
}

TEST(Pattern, WindowsOnAndOff) {
  EXPECT_EQ(bits(Pattern(3, 4, 1), {0, 0, 0, {}}, 16), "0111000011100001");
  // The period also applies before the offset.
  EXPECT_EQ(bits(Pattern(3, 4, 5), {0, 0, 0, {}}, 14), "10000111000011");
}

TEST(Pattern, CountsFromTheOrigin) {
  EXPECT_EQ(bits(Pattern(2, 3, 0), {(std::uint64_t{7} << 32), std::uint64_t{7} << 32, 0, {}}, 7), "1100011");
  EXPECT_EQ(bits(Pattern(2, 3, 0), {(std::uint64_t{7} << 32) + 4, std::uint64_t{7} << 32, 1, {}}, 4), "0110");
}

TEST(Pattern, LongWindowsCrossWordsAndAnyPieceIsTheSame) {
  const Pattern process(130, 77, 50);
  PacketMask whole(2000);
  process.draw(1, kLink, 0, whole);
  for (std::uint64_t i = 0; i < 2000; ++i) ASSERT_EQ(whole.lost(i), (i + 207 - 50) % 207 < 130) << i;
  for (std::uint64_t first = 0; first < 500; first += 13) {
    PacketMask piece(333);
    process.draw(1, kLink, first, piece);
    for (std::uint64_t i = 0; i < 333; ++i) ASSERT_EQ(piece.lost(i), whole.lost(first + i));
    const LostCount count = process.message_count(1, kLink, {first, 0, 0, {}}, 333);
    EXPECT_EQ(count.mean, static_cast<double>(piece.lost_count()));
    EXPECT_EQ(count.variance, 0);
  }
}

TEST(Pattern, TheoryIsThatOfAnyPhase) {
  for (const auto& [lost, delivered] : {std::pair{1U, 9U}, {5U, 2U}, {3U, 3U}, {8U, 13U}}) {
    const Pattern process(lost, delivered, 0);
    const std::uint64_t period = lost + delivered;
    EXPECT_DOUBLE_EQ(process.loss_rate(), static_cast<double>(lost) / static_cast<double>(period));
    EXPECT_EQ(process.mean_burst_packets(), lost);
    EXPECT_EQ(process.mean_gap_packets(), delivered);
    EXPECT_EQ(process.burst_at_least(lost), 1);
    EXPECT_EQ(process.burst_at_least(lost + 1), 0);
    for (std::uint64_t n = 0; n < 3 * period; ++n) {
      double sum = 0;
      double squares = 0;
      for (std::uint64_t phase = 0; phase < period; ++phase) {
        PacketMask mask(n);
        process.draw(1, kLink, phase, mask);
        const auto count = static_cast<double>(mask.lost_count());
        sum += count;
        squares += count * count;
      }
      const double mean = sum / static_cast<double>(period);
      EXPECT_NEAR(mean, static_cast<double>(n) * process.loss_rate(), 1e-12);
      EXPECT_NEAR(process.lost_count_variance(n), squares / static_cast<double>(period) - mean * mean, 1e-10)
          << process.describe() << " n=" << n;
    }
  }
}

TEST(Pattern, WrongNumbersAreErrors) {
  EXPECT_THROW(Pattern(0, 1, 0), ConfigError);
  EXPECT_THROW(Pattern(1, 0, 0), ConfigError);
  EXPECT_THROW(Pattern(1, 1, 2), ConfigError);
  const auto error_of = [](Parameters::Members members) -> std::string {
    try {
      make_pattern(Parameters(std::move(members), "s: /loss"));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  const auto value = [](std::int64_t v) { return Parameters(v, "s: /loss/x"); };
  EXPECT_EQ(error_of({{"every", value(1)}}), "s: /loss/every: got 1, want an integer in [2, 1099511627776]");
  EXPECT_EQ(error_of({{"every", value(4)}, {"offset", value(4)}}), "s: /loss/offset: got 4, want an integer in [0, 3]");
  EXPECT_EQ(error_of({{"lost_packets", value(4)}}), "s: /loss/delivered_packets: is missing");
  EXPECT_EQ(error_of({{"every", value(4)}, {"lost_packets", value(1)}}),
            "s: /loss/lost_packets: unknown name, want one of every, model, offset");
}

}  // namespace
}  // namespace droptest::sim::pattern_test
