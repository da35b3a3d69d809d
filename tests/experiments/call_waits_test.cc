// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/call_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/run_ranks.h"
#include "experiments/training/rank_clock.h"

namespace droptest::experiments::call_waits_test {
namespace {

using CallPart = comm::MeteredCall::Part;
using Rank = std::vector<TimedCall>;
using sim::TrafficClass;
using testing::Pair;
using testing::UnorderedElementsAre;

TimedCall call(std::uint64_t key, std::int64_t begin, std::int64_t duration, CallPart part = CallPart::kWhole,
               TrafficClass traffic_class = TrafficClass::kTpForward) {
  return {key, begin, duration, traffic_class, part, false};
}

std::vector<std::map<std::string, double>> shares(const std::vector<Rank>& ranks) { return waiting_shares(ranks); }

TEST(CallWaits, ACollectiveWaitsForTheLastRank) {
  // Two collectives: rank 1 is 30 late, then rank 0 is 10 late.
  const auto found = shares({{call(1, 100, 50), call(2, 210, 10)}, {call(1, 130, 20), call(2, 200, 20)}});
  EXPECT_THAT(found[0], UnorderedElementsAre(Pair("tp_forward", 30.0 / 60)));
  EXPECT_THAT(found[1], UnorderedElementsAre(Pair("tp_forward", 10.0 / 40)));
}

TEST(CallWaits, ClassesAreApartAndOtherGroupsDoNotCount) {
  const auto found = shares({{call(1, 0, 10), call(5, 10, 10, CallPart::kWhole, TrafficClass::kDpGradient)},
                             {call(1, 4, 6), call(6, 90, 10, CallPart::kWhole, TrafficClass::kDpGradient)}});
  EXPECT_THAT(found[0], UnorderedElementsAre(Pair("tp_forward", 0.4), Pair("dp_gradient", 0.0)));
  EXPECT_THAT(found[1], UnorderedElementsAre(Pair("tp_forward", 0.0), Pair("dp_gradient", 0.0)));
}

TEST(CallWaits, AStartedCallWaitsInItsWaitUntilTheLastStart) {
  const auto found = shares({{call(1, 0, 1, CallPart::kStart), call(1, 10, 9, CallPart::kWait)},
                             {call(1, 14, 2, CallPart::kStart), call(1, 18, 2, CallPart::kWait)}});
  EXPECT_THAT(found[0], UnorderedElementsAre(Pair("tp_forward", 0.4)));
  EXPECT_THAT(found[1], UnorderedElementsAre(Pair("tp_forward", 0.0)));
}

TEST(CallWaits, AReceiveWaitsForItsSenderAndASendForNobody) {
  TimedCall receive = call(3, 0, 20);
  receive.receives = true;
  const auto found = shares({{receive}, {call(3, 15, 2)}});
  EXPECT_THAT(found[0], UnorderedElementsAre(Pair("tp_forward", 0.75)));
  EXPECT_THAT(found[1], UnorderedElementsAre(Pair("tp_forward", 0.0)));
  receive.begin = 30;
  EXPECT_THAT(shares({{receive}, {call(3, 15, 2)}})[1], UnorderedElementsAre(Pair("tp_forward", 0.0)));
}

TEST(CallWaits, CallsWithoutCounterpartsAreTransfer) {
  // An exchange has no key; and a rank may have no record of a call.
  const auto found = shares({{call(0, 0, 10), call(7, 10, 10)}, {call(0, 5, 10)}, {}});
  EXPECT_THAT(found[0], UnorderedElementsAre(Pair("tp_forward", 0.0)));
  EXPECT_THAT(found[1], UnorderedElementsAre(Pair("tp_forward", 0.0)));
  EXPECT_TRUE(found[2].empty());
}

TEST(CallWaits, LinesOfAllRanksHaveTheirWaitingSeconds) {
  std::mutex mutex;
  nlohmann::json of_root;
  comm::run_ranks(2, std::chrono::seconds(30), [&](comm::Communicator& group) {
    RankUsage usage;
    usage.phase_seconds = {{"other", 1.0}};
    usage.communication_seconds = {{"tp_forward", 8.0}, {"control", 1.0}};
    const Rank calls = group.rank() == 0 ? Rank{call(1, 10, 40)} : Rank{call(1, 20, 30), call(2, 60, 1)};
    nlohmann::json lines = gather_usage(usage, calls, group);
    const std::lock_guard lock(mutex);
    if (group.rank() == 0) of_root = std::move(lines);
  });
  ASSERT_EQ(of_root.size(), 2U);
  EXPECT_EQ(of_root[0]["wall_seconds"]["waiting"], nlohmann::json({{"tp_forward", 2.0}}));
  EXPECT_EQ(of_root[1]["wall_seconds"]["waiting"], nlohmann::json({{"tp_forward", 0.0}}));
  EXPECT_EQ(of_root[1]["wall_seconds"]["communication"]["control"], 1.0);
}

TEST(RankClock, RanksOfOneMachineHaveOneOrigin) {
  std::mutex mutex;
  std::vector<comm::Clock::TimePoint> origins;
  std::vector<comm::Clock::TimePoint> points;
  comm::run_ranks(3, std::chrono::seconds(30), [&](comm::Communicator& group) {
    RankClock clock(group);
    const comm::Clock::TimePoint point = clock.meet(group, "a point");
    clock.met();
    const std::lock_guard lock(mutex);
    origins.push_back(clock.origin());
    points.push_back(point);
  });
  EXPECT_THAT(origins, testing::Each(origins.front()));
  EXPECT_THAT(points, testing::Each(points.front()));
}

}  // namespace
}  // namespace droptest::experiments::call_waits_test
