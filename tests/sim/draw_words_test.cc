// SPDX-License-Identifier: Apache-2.0
#include "sim/random/draw_words.h"

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "sim/error.h"
#include "sim/random/draw_kernels.h"
#include "sim/random/threshold.h"
#include "tests/sim/naive_fates.h"

namespace droptest::sim::draw_words_test {
namespace {

const Link kLink{TrafficClass::kTpBackward, Half::kGather, 65534, 300};
constexpr std::uint64_t kSeed = 0xfedcba9876543210U;

std::vector<std::uint64_t> naive_words(std::uint64_t first_word, std::uint64_t threshold, std::size_t words) {
  std::vector<std::uint64_t> below(words, 0);
  for (std::uint64_t i = 0; i < 64 * words; ++i) {
    const std::uint64_t draw = naive_draw(kSeed, kLink, Purpose::kLossEmission, 64 * first_word + i);
    if (draw < threshold) below[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  return below;
}

TEST(DrawsBelow, AgreesWithOnePacketAtATime) {
  for (const std::uint64_t threshold :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 20, std::uint64_t{1} << 31,
        (std::uint64_t{1} << 31) + 1, std::uint64_t{0xffff0000U}, std::uint64_t{0xffffffffU}, kCertain}) {
    // The second range crosses the carry into the counter's second word, the third the end of the index.
    for (const std::uint64_t first_word :
         {std::uint64_t{3}, (std::uint64_t{1} << 28) - 2, (std::uint64_t{1} << 58) - 3}) {
      std::vector<std::uint64_t> below(7, 0x5555);
      draws_below(kSeed, kLink, Purpose::kLossEmission, first_word, threshold, below);
      EXPECT_EQ(below, naive_words(first_word, threshold, 7)) << threshold << " " << first_word;
    }
  }
}

TEST(DrawsBelow, ADrawIsNotBelowItself) {
  const std::uint64_t draw = naive_draw(kSeed, kLink, Purpose::kLossEmission, 64 * 3 + 5);
  std::vector<std::uint64_t> below(1);
  draws_below(kSeed, kLink, Purpose::kLossEmission, 3, draw, below);
  EXPECT_EQ(below[0] >> 5 & 1, 0U);
  draws_below(kSeed, kLink, Purpose::kLossEmission, 3, draw + 1, below);
  EXPECT_EQ(below[0] >> 5 & 1, 1U);
}

TEST(DrawsBelow, TwoThresholdsAreTwiceOne) {
  for (const std::uint64_t a : {std::uint64_t{0}, std::uint64_t{1} << 30, kCertain}) {
    for (const std::uint64_t b : {std::uint64_t{0}, std::uint64_t{3} << 30, kCertain}) {
      std::vector<std::uint64_t> below_a(5), below_b(5);
      draws_below(kSeed, kLink, Purpose::kLossEmission, 11, a, below_a, b, below_b);
      EXPECT_EQ(below_a, naive_words(11, a, 5));
      EXPECT_EQ(below_b, naive_words(11, b, 5));
    }
  }
}

TEST(DrawValues, AreTheDrawsOfAWord) {
  for (const std::uint64_t word : {std::uint64_t{3}, (std::uint64_t{1} << 28) - 1, (std::uint64_t{1} << 58) - 1}) {
    const std::array<std::uint32_t, 64> values = draw_values(kSeed, kLink, Purpose::kLossEmission, word);
    for (std::uint64_t i = 0; i < 64; ++i) {
      ASSERT_EQ(values[i], naive_draw(kSeed, kLink, Purpose::kLossEmission, 64 * word + i)) << word << " " << i;
    }
  }
}

TEST(DrawKernels, EveryWidthOfVectorsGivesTheSameBits) {
  const std::span<const DrawKernels> usable = usable_draw_kernels();
  EXPECT_EQ(usable.front().name, "baseline");
  for (const DrawKernels& kernels : usable) {
    SCOPED_TRACE(std::string(kernels.name));
    for (const std::uint64_t first_word :
         {std::uint64_t{3}, (std::uint64_t{1} << 28) - 2, (std::uint64_t{1} << 58) - 3}) {
      const DrawStream stream{kSeed, link_counter(kLink, Purpose::kLossEmission, 0), first_word};
      for (const std::uint32_t largest : {0U, 5U, 0x7fffffffU, 0x80000000U, 0xfffffffeU}) {
        const std::vector<std::uint64_t> expected = naive_words(first_word, std::uint64_t{largest} + 1, 5);
        std::vector<std::uint64_t> a(5), b(5);
        kernels.one(stream, largest, a);
        EXPECT_EQ(a, expected);
        kernels.two(stream, largest, a.data(), 0x40000000U, b);
        EXPECT_EQ(a, expected);
        EXPECT_EQ(b, naive_words(first_word, 0x40000001U, 5));
      }
      std::array<std::uint32_t, 64> values;
      kernels.values(stream, values);
      for (std::uint64_t i = 0; i < 64; ++i) {
        ASSERT_EQ(values[i], naive_draw(kSeed, kLink, Purpose::kLossEmission, 64 * first_word + i));
      }
    }
  }
}

TEST(DrawKernels, EveryWidthOfVectorsMixesAlike) {
  const PhiloxCounter fields = link_counter(kLink, Purpose::kDigestWord, 0);
  for (const std::size_t number : {0U, 1U, 7U, 8U, 9U, 30U}) {
    std::vector<std::uint64_t> places;
    std::vector<std::uint64_t> contents;
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < number; ++i) {
      places.push_back((i + 1) * 0x9e3779b97f4a7c15U);
      contents.push_back((i + 3) * 0xd1b54a32d192ed03U);
      const PhiloxBlock block = philox(
          contents[i],
          {static_cast<std::uint32_t>(places[i]), static_cast<std::uint32_t>(places[i] >> 32), fields[2], fields[3]});
      sum += std::uint64_t{block[1]} << 32 | block[0];
    }
    EXPECT_EQ(sum_of_mixed(kLink, Purpose::kDigestWord, places, contents), sum) << number;
    for (const DrawKernels& kernels : usable_draw_kernels()) {
      EXPECT_EQ(kernels.mixed(fields, places, contents), sum) << kernels.name << " " << number;
    }
  }
  const std::vector<std::uint64_t> one(1);
  EXPECT_THROW(sum_of_mixed(kLink, Purpose::kDigestWord, one, {}), CheckError);
}

TEST(DrawsBelow, RefusesAThresholdAboveCertain) {
  std::vector<std::uint64_t> below(1);
  EXPECT_THROW(draws_below(kSeed, kLink, Purpose::kLossEmission, 0, kCertain + 1, below), CheckError);
}

}  // namespace
}  // namespace droptest::sim::draw_words_test
