// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/sample_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "experiments/data/sample_plan.h"
#include "experiments/data/sample_table.h"
#include "sim/error.h"
#include "tests/sim/vector_file.h"

namespace droptest::experiments::sample_order_test {
namespace {

std::vector<std::uint64_t> order_of(const SampleOrder& order, std::uint64_t epoch) {
  std::vector<std::uint64_t> samples;
  for (std::uint64_t i = 0; i < order.samples(); ++i) samples.push_back(order.at(epoch, i));
  return samples;
}

TEST(SampleOrder, HasItsTestVectors) {
  const nlohmann::json vectors = sim::read_vectors("sample_order.json");
  for (const nlohmann::json& one : vectors["cases"]) {
    const SampleOrder order(one["seed"].get<std::uint64_t>(), one["samples"].get<std::uint64_t>());
    for (std::size_t i = 0; i < one["index"].size(); ++i) {
      EXPECT_EQ(order.at(one["epoch"].get<std::uint64_t>(), one["index"][i].get<std::uint64_t>()), one["sample"][i]);
    }
  }
}

TEST(SampleOrder, IsAPermutationForEverySmallNumberOfSamples) {
  for (std::uint64_t samples = 1; samples <= 300; ++samples) {
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      const std::vector<std::uint64_t> order = order_of(SampleOrder(7, samples), epoch);
      const std::set<std::uint64_t> different(order.begin(), order.end());
      ASSERT_EQ(different.size(), samples);
      ASSERT_LT(*different.rbegin(), samples);
    }
  }
}

TEST(SampleOrder, SamplesOfLargeNumbersDiffer) {
  for (const std::uint64_t samples :
       {std::uint64_t{1} << 32U, (std::uint64_t{1} << 48U) + 1, std::uint64_t{1} << 62U}) {
    const SampleOrder order(9, samples);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 10000; ++i) {
      const std::uint64_t sample = order.at(2, i * (samples / 10000));
      ASSERT_LT(sample, samples);
      seen.insert(sample);
    }
    EXPECT_EQ(seen.size(), 10000U) << samples;
    EXPECT_GT(*seen.rbegin(), samples - samples / 1000) << "the order reaches all samples";
  }
  EXPECT_THROW(SampleOrder(1, (std::uint64_t{1} << 62U) + 1), CheckError);
  EXPECT_THROW((void)SampleOrder(1, 5).at(0, 5), CheckError);
}

/// Each sample is at each place equally often over epochs: chi-squared with samples^2 cells, (samples - 1)^2 degrees of
/// freedom, within five standard deviations.
TEST(SampleOrder, EverySampleIsAtEveryPlaceEquallyOften) {
  constexpr std::uint64_t kEpochs = 3000;
  for (const std::uint64_t samples : {2U, 3U, 5U, 16U, 23U}) {
    std::vector<double> counts(samples * samples, 0);
    for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const std::vector<std::uint64_t> order = order_of(SampleOrder(5, samples), epoch);
      for (std::uint64_t i = 0; i < samples; ++i) ++counts[i * samples + order[i]];
    }
    const double expected = static_cast<double>(kEpochs) / static_cast<double>(samples);
    double chi_squared = 0;
    for (const double count : counts) chi_squared += (count - expected) * (count - expected) / expected;
    const double freedom = static_cast<double>((samples - 1) * (samples - 1));
    EXPECT_LT(chi_squared, freedom + 5 * std::sqrt(2 * freedom)) << samples;
  }
}

/// A sample says nothing about the next one: their differences modulo the number of samples are uniform.
TEST(SampleOrder, NeighboursAreIndependent) {
  constexpr std::uint64_t kSamples = 1009;
  constexpr std::size_t kCells = 16;
  std::vector<double> counts(kCells, 0);
  const SampleOrder order(11, kSamples);
  double differences = 0;
  for (std::uint64_t epoch = 0; epoch < 40; ++epoch) {
    const std::vector<std::uint64_t> samples = order_of(order, epoch);
    for (std::uint64_t i = 1; i < kSamples; ++i) {
      ++counts[(samples[i] + kSamples - samples[i - 1]) % kSamples * kCells / kSamples];
      ++differences;
    }
  }
  double chi_squared = 0;
  for (const double count : counts) {
    chi_squared += (count - differences / kCells) * (count - differences / kCells) / (differences / kCells);
  }
  // 15 degrees of freedom; a cell has 63 or 64 of 1008 differences, which adds less than 1 % of a cell.
  EXPECT_LT(chi_squared, 15 + 5 * std::sqrt(30.0) + 4);
}

TEST(SampleOrder, SeedsAndEpochsHaveOrdersOfTheirOwn) {
  const auto one = order_of(SampleOrder(1, 100), 0);
  EXPECT_EQ(one, order_of(SampleOrder(1, 100), 0));
  EXPECT_NE(one, order_of(SampleOrder(1, 100), 1));
  EXPECT_NE(one, order_of(SampleOrder(2, 100), 0));
}

std::vector<std::uint64_t> samples_of_steps(const SamplePlan& plan, std::uint64_t steps) {
  std::vector<std::uint64_t> samples;
  std::uint64_t position = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const std::uint64_t first = plan.begin(position);
    for (std::uint64_t k = 0; k < plan.batch(); ++k) {
      if (const auto sample = plan.sample(first + k)) samples.push_back(*sample);
    }
    position = first + plan.batch();
  }
  return samples;
}

TEST(SamplePlan, EpochsHaveEachSampleOnceAndThenEnd) {
  const SamplePlan plan({3, ShardConfig::Order::kShuffled, LastBatch::kTrained, 2}, 23, 5);
  EXPECT_EQ(plan.steps_left(0), 10U);  // ceil(46 / 5)
  const std::vector<std::uint64_t> samples = samples_of_steps(plan, 10);
  ASSERT_EQ(samples.size(), 46U);
  EXPECT_EQ(std::set<std::uint64_t>(samples.begin(), samples.begin() + 23).size(), 23U);
  EXPECT_EQ(std::set<std::uint64_t>(samples.begin() + 23, samples.end()).size(), 23U);
  EXPECT_EQ(plan.steps_left(45), 1U);
  EXPECT_EQ(plan.steps_left(46), 0U);
  EXPECT_EQ(plan.steps_left(50), 0U);
}

TEST(SamplePlan, DroppedLastBatchesBeginTheNextEpoch) {
  const SamplePlan plan({3, ShardConfig::Order::kShuffled, LastBatch::kDropped, 3}, 23, 5);
  EXPECT_EQ(plan.steps_left(0), 12U);
  EXPECT_EQ(plan.begin(15), 15U);
  EXPECT_EQ(plan.begin(20), 23U);
  const SamplePlan even({3, ShardConfig::Order::kShuffled, LastBatch::kDropped, 3}, 20, 5);
  EXPECT_EQ(even.begin(15), 15U) << "the last batch is whole";
  EXPECT_EQ(even.steps_left(0), 12U);
  const std::vector<std::uint64_t> samples = samples_of_steps(plan, 12);
  ASSERT_EQ(samples.size(), 60U);
  std::set<std::uint64_t> all;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto begin = samples.begin() + 20L * epoch;
    EXPECT_EQ(std::set<std::uint64_t>(begin, begin + 20).size(), 20U);
    all.insert(begin, begin + 20);
  }
  EXPECT_GT(all.size(), 20U) << "other samples are left out in each epoch";
  // Another global batch in the middle of an epoch: 4 and 4 of the 13 remaining samples, and then an epoch of 2 x 9.
  const SamplePlan other({3, ShardConfig::Order::kShuffled, LastBatch::kDropped, 2}, 23, 9);
  EXPECT_EQ(other.steps_left(10), 3U);
  EXPECT_THROW(SamplePlan({3, ShardConfig::Order::kShuffled, LastBatch::kDropped, 2}, 23, 24), CheckError);
}

TEST(SamplePlan, StepsGoOnWithoutAnEndAndInTheStoredOrder) {
  const SamplePlan plan({3, ShardConfig::Order::kAsStored, LastBatch::kTrained, 0}, 3, 2);
  EXPECT_EQ(plan.steps_left(7), std::nullopt);
  EXPECT_EQ(samples_of_steps(plan, 4), (std::vector<std::uint64_t>{0, 1, 2, 0, 1, 2, 0, 1}));
}

TEST(SampleTable, NumbersTheWholeSequencesOfAllShards) {
  // Sequences of 4 tokens: (9 - 1) / 4 = 2, none, 0, and 3 of the fourth shard, whose last tokens are held out.
  const std::vector<ShardFile> files = {
      {"a", 1024 + 18, 9, {}, {}, {}}, {"b", 0, 0, {}, {}, {}}, {"c", 8, 4, {}, {}, {}}, {"d", 34, 17, {}, {}, {}}};
  const SampleTable table(files, 2, 3, 4);
  EXPECT_EQ(table.samples(), 5U);
  EXPECT_EQ(table.samples_of(0), 2U);
  EXPECT_EQ(table.samples_of(2), 0U);
  EXPECT_EQ(table.samples_of(3), 3U);
  EXPECT_EQ(table.header_bytes(0), 1024U);
  EXPECT_EQ(table.place(1).shard, 0U);
  EXPECT_EQ(table.place(1).first_token, 4U);
  EXPECT_EQ(table.place(2).shard, 3U);
  EXPECT_EQ(table.place(4).first_token, 8U);
  EXPECT_THROW((void)table.place(5), CheckError);
  EXPECT_THROW(SampleTable(files, 2, 30, 4), ConfigError) << "nothing is left to train on";
  EXPECT_NE(table.fingerprint(), SampleTable(files, 2, 2, 5).fingerprint());
  EXPECT_EQ(table.fingerprint(), SampleTable(files, 2, 3, 4).fingerprint());
}

}  // namespace
}  // namespace droptest::experiments::sample_order_test
