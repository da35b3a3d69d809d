// SPDX-License-Identifier: Apache-2.0
#include "comm/dry_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/run_ranks.h"
#include "sim/error.h"

namespace droptest::comm::dry_communicator_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Elements at an address that no memory has.
Tensor nowhere(ElementType type, std::uint64_t elems, std::uintptr_t at = std::uintptr_t{1} << 46U) {
  return {type, {reinterpret_cast<std::byte*>(at), elems * element_bytes(type)}};  // NOLINT
}

TEST(DryCommunicator, WritesDownTheCallsOfAllGroupsInTheirOrder) {
  std::vector<DryCall> calls;
  DryCommunicator world(6, 3, calls);
  const auto group = world.subgroup(std::array{1, 3, 5});
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->rank(), 1);
  const auto pair = group->subgroup(std::array{1, 2});
  ASSERT_NE(pair, nullptr);
  EXPECT_EQ(pair->world_rank(0), 3);
  EXPECT_EQ(pair->world_rank(1), 5);
  EXPECT_EQ(world.subgroup(std::array{0, 1}), nullptr);

  const std::vector<std::uint64_t> counts = {4, 0, 2};
  world.all_reduce(nowhere(ElementType::kBfloat16, 7), ReduceOp::kSum, {sim::TrafficClass::kTpForward, "sum", 2});
  Work work = group->start_all_gather(nowhere(ElementType::kFloat32, 0), nowhere(ElementType::kFloat32, 6), counts,
                                      {sim::TrafficClass::kParameterGather, "values", -1});
  work.wait();
  const Send send{nowhere(ElementType::kFloat32, 5), 1, {sim::TrafficClass::kSequenceForward, "keys", 0}};
  const Receive receive{
      nowhere(ElementType::kFloat32, 3, std::uintptr_t{1} << 47U), 1, {sim::TrafficClass::kSequenceForward, "keys", 0}};
  pair->exchange(std::array{send}, std::array{receive});

  ASSERT_EQ(calls.size(), 4U);
  EXPECT_EQ(calls[0].operation, Operation::kAllReduce);
  EXPECT_EQ(calls[0].bytes(), 14U);
  EXPECT_EQ(calls[0].name, "sum");
  EXPECT_EQ(calls[0].layer, 2);
  EXPECT_FALSE(calls[0].is_started);
  EXPECT_THAT(*calls[0].ranks, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(calls[1].operation, Operation::kAllGather);
  EXPECT_TRUE(calls[1].is_started);
  EXPECT_EQ(calls[1].elems, 6U);
  EXPECT_EQ(calls[1].counts, counts);
  EXPECT_THAT(*calls[1].ranks, ElementsAre(1, 3, 5));
  EXPECT_EQ(calls[1].rank, 1);
  EXPECT_EQ(calls[2].operation, Operation::kSend);
  EXPECT_EQ(calls[2].elems, 5U);
  EXPECT_EQ(calls[2].peer, 1);
  EXPECT_EQ(calls[3].operation, Operation::kRecv);
  EXPECT_EQ(calls[3].elems, 3U);
  EXPECT_THAT(*calls[3].ranks, ElementsAre(3, 5));
}

TEST(DryCommunicator, RefusesWhatABackendRefuses) {
  std::vector<DryCall> calls;
  DryCommunicator world(2, 0, calls);
  const std::vector<std::uint64_t> counts = {4, 4};
  try {
    world.reduce_scatter(nowhere(ElementType::kFloat32, 7), nowhere(ElementType::kFloat32, 4), counts, ReduceOp::kSum,
                         {sim::TrafficClass::kDpGradient, "bucket", -1});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("28 bytes"));
    EXPECT_THAT(error.what(), HasSubstr("want 32"));
  }
  EXPECT_TRUE(calls.empty());
  EXPECT_THROW((void)world.split(0, 0), CheckError);
}

// The lists give the ranks and their order.
TEST(Subgroup, HasTheListedRanks) {
  run_ranks(5, std::chrono::seconds(60), [](Communicator& world) {
    const std::vector<int> reversed = {4, 2, 0};
    const std::vector<int> others = {1};
    const bool is_odd = world.rank() % 2 == 1;
    const auto group = world.subgroup(world.rank() == 3 ? std::vector<int>() : is_odd ? others : reversed);
    if (world.rank() == 3) {
      EXPECT_EQ(group, nullptr);
      return;
    }
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->world_size(), is_odd ? 1 : 3);
    if (is_odd) return;
    EXPECT_EQ(group->rank(), (4 - world.rank()) / 2);
    EXPECT_EQ(group->world_rank(0), 4);
  });
}

}  // namespace
}  // namespace droptest::comm::dry_communicator_test
