// SPDX-License-Identifier: Apache-2.0
// The coordinates of ranks, and their groups.
#include "comm/parallel_layout.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/run_ranks.h"
#include "sim/error.h"

namespace droptest::comm::parallel_layout_test {
namespace {

constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{sim::TrafficClass::kControl, "ranks"};

ParallelLayout layout_of(int tensor, int sequence, int data, int pipeline) {
  return ParallelLayout({.data = data, .sequence = sequence, .pipeline = pipeline, .tensor = tensor});
}

TEST(ParallelLayout, PipelineRanksAreNeighboursAndReplicasLieFurthestApart) {
  const ParallelLayout layout = layout_of(2, 1, 2, 2);
  EXPECT_EQ(layout.coordinates(3), (ParallelNumbers{.data = 0, .sequence = 0, .pipeline = 1, .tensor = 1}));
  EXPECT_EQ(layout.coordinates(5), (ParallelNumbers{.data = 1, .sequence = 0, .pipeline = 1, .tensor = 0}));
  EXPECT_EQ(layout.stride(ParallelDimension::kPipeline), 1);
  EXPECT_EQ(layout.stride(ParallelDimension::kTensor), 2);
  EXPECT_EQ(layout.stride(ParallelDimension::kData), 4);
}

TEST(ParallelLayout, AnOrderNamesEachDimensionOnce) {
  ParallelLayout layout = layout_of(2, 1, 2, 2);
  layout.order[0] = ParallelDimension::kData;
  try {
    (void)layout.world_size();
    ADD_FAILURE() << "an order without pipeline";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "/parallel/order: got none of \"pipeline\", want each dimension once");
  }
}

TEST(ParallelLayout, InMegatronsOrderTensorRanksAreNeighboursAndPipelineRanksLieFurthestApart) {
  ParallelLayout layout = layout_of(2, 3, 4, 5);
  layout.order = kMegatronOrder;
  EXPECT_EQ(layout.world_size(), 120);
  EXPECT_EQ(layout.rank({.tensor = 1}), 1);
  EXPECT_EQ(layout.rank({.sequence = 1}), 2);
  EXPECT_EQ(layout.rank({.data = 1}), 6);
  EXPECT_EQ(layout.rank({.pipeline = 1}), 24);
  EXPECT_EQ(layout.coordinates(119), (ParallelNumbers{.data = 3, .sequence = 2, .pipeline = 4, .tensor = 1}));
  for (int rank = 0; rank < 120; ++rank) EXPECT_EQ(layout.rank(layout.coordinates(rank)), rank);
}

TEST(ParallelLayout, SaysWhichProductDoesNotFit) {
  const auto message_of = [](const ParallelLayout& layout, int ranks) {
    try {
      layout.require_world(ranks);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message_of(layout_of(2, 1, 4, 1), 8), "");
  EXPECT_EQ(message_of(layout_of(2, 1, 4, 1), 6),
            "/parallel: got tensor 2 x data 4, 8 in all, but 6 ranks were started; want the product to be "
            "their number");
  EXPECT_EQ(message_of(layout_of(1, 1, 1, 1), 2),
            "/parallel: got 1 rank, 1 in all, but 2 ranks were started; want the product to be their number");
  EXPECT_EQ(message_of(layout_of(2, 0, 4, 1), 8), "/parallel/sequence: got 0, want at least 1");
  EXPECT_EQ(message_of(layout_of(60000, 60000, 60000, 1), 8),
            "/parallel: got tensor 60000 x sequence 60000 x data 60000, want at most 65534 ranks");
  EXPECT_THROW(layout_of(2, 1, 4, 1).coordinates(8), CheckError);
  EXPECT_THROW((void)layout_of(2, 1, 4, 1).rank({.tensor = 2}), CheckError);
}

// Every rank gathers the world ranks of each of its groups.
TEST(ParallelGroups, HaveTheRanksThatDifferInOneCoordinate) {
  for (const ParallelOrder& order : {kDefaultOrder, kMegatronOrder}) {
    ParallelLayout layout = layout_of(2, 1, 3, 2);
    layout.order = order;
    run_ranks(12, kTimeout, [&](Communicator& world) {
      const ParallelGroups groups(layout, world);
      EXPECT_EQ(groups.coordinates(), layout.coordinates(world.rank()));
      EXPECT_EQ(groups.group(ParallelDimension::kSequence), nullptr);
      for (const auto dimension :
           {ParallelDimension::kTensor, ParallelDimension::kData, ParallelDimension::kPipeline}) {
        Communicator* group = groups.group(dimension);
        ASSERT_NE(group, nullptr);
        ASSERT_EQ(group->world_size(), layout.of(dimension));
        EXPECT_EQ(group->rank(), groups.coordinates().of(dimension));
        std::vector<std::uint64_t> met(static_cast<std::size_t>(group->world_size()));
        const std::array<std::uint64_t, 1> mine = {static_cast<std::uint64_t>(world.rank())};
        group->all_gather(ConstTensor(std::span<const std::uint64_t>(mine)), Tensor(std::span(met)),
                          std::vector<std::uint64_t>(met.size(), 1), kMessage);
        for (int r = 0; r < group->world_size(); ++r) {
          ParallelNumbers there = groups.coordinates();
          there.of(dimension) = r;
          EXPECT_EQ(met[static_cast<std::size_t>(r)], static_cast<std::uint64_t>(layout.rank(there)));
          EXPECT_EQ(group->world_rank(r), layout.rank(there));
        }
      }
    });
  }
}

TEST(ParallelGroups, GradientsAreThoseOfDataAndSequenceRanks) {
  for (const ParallelOrder& order : {kDefaultOrder, kMegatronOrder}) {
    for (const auto& ranks : {std::pair(2, 3), std::pair(1, 3), std::pair(2, 1), std::pair(1, 1)}) {
      const ParallelLayout layout({ranks.first, ranks.second, 1, 2}, order);
      EXPECT_EQ(layout.gradient_ranks(), ranks.first * ranks.second);
      run_ranks(layout.world_size(), kTimeout, [&](Communicator& world) {
        const ParallelGroups groups(layout, world);
        const Communicator* const group = groups.gradient_group();
        ASSERT_EQ(group == nullptr, layout.gradient_ranks() == 1);
        if (group == nullptr) return;
        ASSERT_EQ(group->world_size(), layout.gradient_ranks());
        EXPECT_EQ(group->rank(), layout.gradient_rank(groups.coordinates()));
        for (int r = 0; r < group->world_size(); ++r) {
          const ParallelNumbers there = layout.coordinates(group->world_rank(r));
          EXPECT_EQ(layout.gradient_rank(there), r);
          EXPECT_EQ(there.tensor, groups.coordinates().tensor);
        }
      });
    }
  }
}

TEST(ParallelGroups, AllRanksOfOneKindAreTheWorldItself) {
  run_ranks(3, kTimeout, [&](Communicator& world) {
    const ParallelGroups groups(layout_of(3, 1, 1, 1), world);
    EXPECT_EQ(groups.group(ParallelDimension::kTensor), &world);
    EXPECT_EQ(groups.group(ParallelDimension::kData), nullptr);
    EXPECT_THROW(ParallelGroups(layout_of(2, 1, 1, 1), world), ConfigError);
  });
  run_ranks(1, kTimeout, [&](Communicator& world) {
    EXPECT_EQ(ParallelGroups(layout_of(1, 1, 1, 1), world).group(ParallelDimension::kTensor), &world);
  });
}

}  // namespace
}  // namespace droptest::comm::parallel_layout_test
