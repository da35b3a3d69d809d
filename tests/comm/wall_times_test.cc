// SPDX-License-Identifier: Apache-2.0
#include "comm/wall_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "sim/error.h"
#include "tests/comm/fake_clock.h"

namespace droptest::comm::wall_times_test {
namespace {

using testing::ElementsAre;
using namespace std::chrono_literals;

constexpr std::size_t kRest = 2;

TEST(WallTimes, EachMomentCountsForTheInnermostActivity) {
  FakeClock clock;
  WallTimes times(3, kRest, clock);
  clock.advance(1s);
  times.enter(0);
  clock.advance(2s);
  times.enter(1);
  clock.advance(4s);
  times.leave();
  clock.advance(8s);
  times.leave();
  clock.advance(16s);
  EXPECT_THAT(times.take(), ElementsAre(10, 4, 17));
  EXPECT_THAT(times.take(), ElementsAre(0, 0, 0)) << "of the time since the last call";
}

TEST(WallTimes, AnActivityUnderWayCountsUpToNow) {
  FakeClock clock;
  WallTimes times(3, kRest, clock);
  times.enter(1);
  clock.advance(3s);
  EXPECT_THAT(times.take(), ElementsAre(0, 3, 0));
  clock.advance(5s);
  times.leave();
  EXPECT_THAT(times.take(), ElementsAre(0, 5, 0));
}

TEST(WallTimes, ACoveringActivityCountsForAllThatItDoes) {
  FakeClock clock;
  WallTimes times(3, kRest, clock);
  {
    const WallTimes::Scope covering(&times, 0, WallTimes::Inner::kIsCovered);
    clock.advance(1s);
    const WallTimes::Scope inner(&times, 1);
    clock.advance(2s);
    const WallTimes::Scope innermost(&times, kRest);
    clock.advance(4s);
  }
  const WallTimes::Scope after(&times, 1);
  clock.advance(8s);
  EXPECT_THAT(times.take(), ElementsAre(7, 8, 0));
}

TEST(WallTimes, TheListenerHearsOfActivitiesUnderTheirOwnNames) {
  struct Ended final : WallTimes::Listener {
    void ended(std::size_t activity, Clock::TimePoint begin, Clock::TimePoint end) override {
      list.push_back(std::to_string(activity) + ": " +
                     std::to_string(std::chrono::duration_cast<std::chrono::seconds>(end - begin).count()));
    }
    std::vector<std::string> list;
  } heard;
  FakeClock clock;
  WallTimes times(3, kRest, clock);
  times.set_listener(&heard);
  times.enter(0, WallTimes::Inner::kIsCovered);
  clock.advance(1s);
  times.enter(1);
  clock.advance(2s);
  times.leave();
  times.leave();
  EXPECT_THAT(heard.list, ElementsAre("1: 2", "0: 3"));
}

TEST(WallTimes, RefusesActivitiesThatAreNotThere) {
  EXPECT_THROW(WallTimes(2, 2), CheckError);
  WallTimes times(2, 1);
  EXPECT_THROW(times.enter(2), CheckError);
  EXPECT_THROW(times.leave(), CheckError);
}

}  // namespace
}  // namespace droptest::comm::wall_times_test
