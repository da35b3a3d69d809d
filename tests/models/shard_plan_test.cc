// SPDX-License-Identifier: Apache-2.0
// The places of parameters, their buckets, and their owners.
#include "models/gpt2/shard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::models::shard_plan_test {
namespace {

constexpr Gpt2Config kModel{3, 64, 4, 12, 97};
constexpr std::uint64_t kElementBytes = 4;

// 97 rows over 4 ranks: 25 each with padding, 22 true ones on the last.
TEST(ParameterTable, PaddingLiesBehindAllThatIsTrained) {
  std::uint64_t rows = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const ParameterTable table(gpt2_tensors(kModel, 4, rank));
    const std::size_t tokens = table.number_of("wte.weight");
    const std::uint64_t trained = rank == 3 ? 22 * 64 : 25 * 64;
    EXPECT_EQ(table.trained[tokens], trained);
    EXPECT_EQ(table.ranges[tokens].count, 25U * 64);
    EXPECT_TRUE(rank < 3 || table.ranges[tokens].offset + trained == table.trained_elems);
    EXPECT_EQ(table.elems - table.trained_elems, 25U * 64 - trained);
    EXPECT_EQ(table.chunk_ends().back(), table.trained_elems);
    std::uint64_t in_units = 0;
    for (const ParameterUnit& unit : table.units) in_units += unit.count;
    EXPECT_EQ(in_units, table.trained_elems);
    rows += table.trained[tokens] / 64;
  }
  EXPECT_EQ(rows, 97U);
}

ShardOptions options_of(int zero) {
  return {.zero = zero, .bucket_bytes = 200000, .first_bucket_bytes = 40000, .gather_bucket_bytes = 70000};
}

TEST(ShardPlan, BucketsFollowEachOtherAndKeepTheirSizes) {
  const ParameterTable table(gpt2_tensors(kModel, 2, 1));
  const std::vector<std::uint64_t> ends = table.chunk_ends();
  const std::set<std::uint64_t> cuts(ends.begin(), ends.end());
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE("zero " + std::to_string(zero));
    const ShardOptions options = options_of(zero);
    const ShardPlan plan(table, kElementBytes, options, 3, 0);
    std::uint64_t next = 0;
    std::set<std::string> names;
    for (const Bucket& bucket : plan.buckets()) {
      EXPECT_EQ(bucket.offset, next);
      std::uint64_t most = next == 0 ? options.first_bucket_bytes : options.bucket_bytes;
      if (zero == 3) most = options.gather_bucket_bytes;
      const auto chunks = std::count_if(ends.begin(), ends.end(), [&](std::uint64_t end) {
        return end > bucket.offset && end <= bucket.offset + bucket.count;
      });
      EXPECT_TRUE(bucket.count * kElementBytes <= most || chunks == 1) << bucket.gradients;
      next += bucket.count;
      EXPECT_TRUE(cuts.contains(next)) << "is cut within a chunk";
      const ParameterUnit& last = table.units[bucket.last_unit];
      EXPECT_TRUE(next > last.offset && next <= last.offset + last.count);
      const bool in_one = bucket.offset >= last.offset;
      EXPECT_TRUE(in_one || zero < 2) << "a bucket over two units";
      EXPECT_EQ(bucket.layer, in_one ? last.layer : kOutsideOfBlocks);
      EXPECT_TRUE(names.insert(bucket.gradients).second && names.insert(bucket.parameters).second);
      // No bucket could take the next chunk, too.
      const auto after = std::upper_bound(ends.begin(), ends.end(), next);
      const bool may_grow = after != ends.end() && (zero < 2 || *after <= last.offset + last.count);
      EXPECT_TRUE(!may_grow || (*after - bucket.offset) * kElementBytes > most) << bucket.gradients;
    }
    EXPECT_EQ(next, table.trained_elems);
    EXPECT_GE(plan.buckets().size(), 3U);
  }
}

TEST(ShardPlan, EachElementHasOneOwnerAndPartsAreEven) {
  constexpr int kRanks = 3;
  const ParameterTable table(gpt2_tensors(kModel, 1, 0));
  const std::vector<std::uint64_t> ends = table.chunk_ends();
  for (const int zero : {1, 2, 3}) {
    std::vector<int> owners(table.trained_elems);
    for (int rank = 0; rank < kRanks; ++rank) {
      const ShardPlan plan(table, kElementBytes, options_of(zero), kRanks, rank);
      ASSERT_EQ(plan.own().size(), plan.buckets().size());
      std::uint64_t shard = 0;
      for (std::size_t i = 0; i < plan.buckets().size(); ++i) {
        const Bucket& bucket = plan.buckets()[i];
        const OwnPart& part = plan.own_of_bucket(i);
        EXPECT_EQ(part.count, bucket.counts[static_cast<std::size_t>(rank)]);
        EXPECT_EQ(part.shard_offset, shard);
        shard += part.count;
        for (std::uint64_t e = part.offset; e < part.offset + part.count; ++e) ++owners[e];
        const double even = static_cast<double>(bucket.count) / kRanks;
        EXPECT_LE(std::abs(static_cast<double>(part.count) - even), kNormChunkElems) << "is a chunk away";
      }
      EXPECT_EQ(plan.own_elems(), shard);
    }
    EXPECT_THAT(owners, testing::Each(1));
  }
}

TEST(ShardPlan, WithoutShardedStateEveryRankOwnsAll) {
  const ParameterTable table(gpt2_tensors(kModel, 1, 0));
  for (const int ranks : {1, 4}) {
    const ShardPlan plan(table, kElementBytes, options_of(0), ranks, ranks - 1);
    ASSERT_EQ(plan.own().size(), 1U);
    EXPECT_EQ(plan.own()[0].count, table.trained_elems);
    EXPECT_EQ(plan.buckets().empty(), ranks == 1);
  }
}

TEST(ShardPlan, OptionsWithoutMeaningAreRefused) {
  const ParameterTable table(gpt2_tensors(kModel, 1, 0));
  const auto refused = [&](const ShardOptions& options, int ranks) {
    EXPECT_THROW(ShardPlan(table, kElementBytes, options, ranks, 0), ConfigError);
  };
  refused({.zero = 4}, 2);
  refused({.zero = 1}, 1);
  refused({.bucket_bytes = 0}, 2);
  refused({.first_bucket_bytes = 0}, 2);
  refused({.gather_bucket_bytes = 0}, 2);
}

}  // namespace
}  // namespace droptest::models::shard_plan_test
