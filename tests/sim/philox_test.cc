// SPDX-License-Identifier: Apache-2.0
#include "sim/random/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "sim/error.h"
#include "sim/random/threshold.h"
#include "tests/sim/vector_file.h"

namespace droptest::sim::philox_test {
namespace {

std::uint32_t hex_word(const nlohmann::json& text) {
  return static_cast<std::uint32_t>(std::stoul(text.get<std::string>(), nullptr, 16));
}

TEST(Philox, GivesTheKnownAnswers) {
  const nlohmann::json vectors = read_vectors("philox.json")["philox4x32_10"];
  ASSERT_EQ(vectors.size(), 3U);
  for (const nlohmann::json& v : vectors) {
    PhiloxCounter counter{};
    PhiloxBlock want{};
    for (std::size_t i = 0; i < 4; ++i) {
      counter[i] = hex_word(v["counter"][i]);
      want[i] = hex_word(v["output"][i]);
    }
    const std::uint64_t key = std::uint64_t{hex_word(v["key"][1])} << 32 | hex_word(v["key"][0]);
    EXPECT_EQ(philox(key, counter), want);
  }
}

TEST(Philox, AgreesWithTheStandardLibraryEngine) {
  // The 10000th value of C++26's std::philox4x32 with its default seed.
  EXPECT_EQ(philox(20111115, {2499, 0, 0, 0})[3], 1955073260U);
}

TEST(Philox, GivesTheGoldenBernoulliLosses) {
  const auto losses = [](double p, std::size_t most) {
    std::vector<std::uint32_t> lost;
    for (std::uint32_t i = 0; i < 1000 && lost.size() < most; ++i) {
      if (philox(42, {i / 4, 0, 0, 0})[i % 4] < probability_threshold(p)) lost.push_back(i);
    }
    return lost;
  };
  EXPECT_EQ(losses(0.01, 1000), (std::vector<std::uint32_t>{217, 241, 336, 414, 555, 589, 702, 742, 758, 818, 946}));
  EXPECT_EQ(losses(0.1, 12), (std::vector<std::uint32_t>{2, 22, 23, 30, 55, 68, 101, 111, 114, 115, 125, 133}));
  EXPECT_EQ(losses(0.1, 1000).size(), 112U);
}

TEST(Philox, ThresholdsAreFloorsAndExactAtBothEnds) {
  EXPECT_EQ(probability_threshold(0), 0U);
  EXPECT_EQ(probability_threshold(1), std::uint64_t{1} << 32);
  EXPECT_EQ(probability_threshold(0.01), 42949672U);
  EXPECT_EQ(probability_threshold(0.1), 429496729U);
  EXPECT_EQ(probability_threshold(0.5), std::uint64_t{1} << 31);
  EXPECT_EQ(probability_threshold(std::nextafter(1.0, 0.0)), 0xffffffffU);
  EXPECT_EQ(probability_threshold(kSmallestProbability), 1U);
}

TEST(LinkCounter, HasTheDocumentedFields) {
  const Link link{TrafficClass::kPpGradient, Half::kGather, 0x1234, 0xabcd};
  EXPECT_EQ(link_counter(link, Purpose::kLossEmission, 0x0123456789abcdefU),
            (PhiloxCounter{0x89abcdefU, 0x01234567U, 0x1234abcdU, 0x00020106U}));
}

TEST(LinkCounter, CountsBlocksModuloTwoToThe62) {
  const Link link{TrafficClass::kTpForward, Half::kReduce, 1, 2};
  const std::uint64_t blocks = std::uint64_t{1} << 62;
  EXPECT_EQ(link_counter(link, Purpose::kLossTransition, blocks + 5), link_counter(link, Purpose::kLossTransition, 5));
  EXPECT_EQ(link_counter(link, Purpose::kLossTransition, ~std::uint64_t{0})[1], 0x3fffffffU);
}

TEST(LinkCounter, DiffersForEveryField) {
  std::set<PhiloxCounter> counters;
  std::size_t made = 0;
  for (const TrafficClass c : kAllTrafficClasses) {
    for (const Half half : {Half::kReduce, Half::kGather}) {
      for (const std::uint16_t source : std::initializer_list<std::uint16_t>{0, 1, 255, 256, 65534}) {
        for (const std::uint16_t destination : std::initializer_list<std::uint16_t>{0, 1, 255, 256, 65535}) {
          for (const Purpose purpose : {Purpose::kLossTransition, Purpose::kLossEmission}) {
            for (const std::uint64_t block : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32}) {
              counters.insert(link_counter({c, half, source, destination}, purpose, block));
              ++made;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(counters.size(), made);
}

TEST(LinkCounter, RefusesAPurposeOfTheEngine) {
  EXPECT_THROW(link_counter(Link{}, Purpose::kWeights, 0), CheckError);
  EXPECT_THROW(PhiloxEngine(1, Purpose::kLossTransition, 0), CheckError);
}

TEST(PhiloxEngine, SeekGoesToAnyValue) {
  PhiloxEngine engine(7, Purpose::kWeights, 3);
  std::vector<std::uint32_t> values;
  for (int i = 0; i < 41; ++i) values.push_back(engine());
  for (const std::uint64_t i : {40, 3, 4, 0, 17, 39, 1}) {
    engine.seek(i);
    EXPECT_EQ(engine(), values[i]) << i;
    if (i < 40) {
      EXPECT_EQ(engine(), values[i + 1]) << i;
    }
  }
}

TEST(PhiloxEngine, GivesTheDocumentedBlocks) {
  PhiloxEngine engine(9, Purpose::kBatches, 0x0123456789abcdefU);
  engine.seek((std::uint64_t{5} << 34) + 2);
  EXPECT_EQ(engine(), philox(9, {0, 0x89abcdefU, 0x01234567U, 0x00110005U})[2]);
}

TEST(PhiloxEngine, StreamsAndPurposesAndSeedsDiffer) {
  std::set<std::uint64_t> firsts;
  for (const std::uint64_t seed : {1, 2}) {
    for (const Purpose purpose : {Purpose::kWeights, Purpose::kBatches, Purpose::kSyntheticInput}) {
      for (const std::uint64_t stream :
           {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
        PhiloxEngine engine(seed, purpose, stream);
        const std::uint64_t high = engine();
        firsts.insert(high << 32 | engine());
      }
    }
  }
  EXPECT_EQ(firsts.size(), 24U);
}

}  // namespace
}  // namespace droptest::sim::philox_test
