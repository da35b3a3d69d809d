// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/training_history.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "experiments/checkpoint/state_bytes.h"

namespace droptest::experiments::training_history_test {
namespace {

using nlohmann::json;

comm::VirtualTime seconds(double seconds) {
  comm::VirtualTime time;
  time.seconds = seconds;
  time.exposed[1] = seconds / 2;
  time.packets = static_cast<std::uint64_t>(10 * seconds);
  return time;
}

TEST(TrainingHistory, MembershipsFollowOneAnother) {
  TrainingHistory history(1, "data 3");
  const json before = json::array({{{"epoch", 0}, {"layout", "data 4"}}});
  history.begin_membership(before, 20);
  EXPECT_EQ(history.begun_after(), 20U);
  const json all = history.count(30, {{"dp_gradient", {{"packets", 5}}}});
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0], before[0]);
  EXPECT_EQ(all[1], json({{"epoch", 1},
                          {"from_step", 20},
                          {"to_step", 30},
                          {"layout", "data 3"},
                          {"classes", {{"dp_gradient", {{"packets", 5}}}}}}));
}

TEST(TrainingHistory, ARankAloneKnowsLossesUpToTheLastCount) {
  TrainingHistory history(0, "data 2");
  EXPECT_EQ(history.as_counted(0)[0]["classes"], json::object());
  (void)history.count(8, {{"dp_gradient", 3}});
  EXPECT_FALSE(history.as_counted(8)[0].contains("counted_to_step"));
  const json later = history.as_counted(11);
  EXPECT_EQ(later[0]["classes"], json({{"dp_gradient", 3}}));
  EXPECT_EQ(later[0]["to_step"], 11);
  EXPECT_EQ(later[0]["counted_to_step"], 8);
}

TEST(TrainingHistory, TimeOfAMembershipIsAddedToThatOfTheOnesBefore) {
  TrainingHistory history(0, "data 4");
  EXPECT_EQ(history.with_time_before(seconds(1)).seconds, 1);
  EXPECT_EQ(history.with_time_before(seconds(2)).seconds, 2);  // a later time of the same membership
  history.begin_membership(json::array(), 5);
  const comm::VirtualTime both = history.with_time_before(seconds(4));
  EXPECT_EQ(both.seconds, 6);
  EXPECT_EQ(both.exposed[1], 3);
  EXPECT_EQ(both.packets, 60U);
}

TEST(TrainingHistory, AnotherRunsCheckpointEndsItsResumptions) {
  TrainingHistory history(0, "data 1");
  history.resume(7);
  history.start_from({"0123", 9, 2, 0, 0});
  EXPECT_TRUE(history.resumed_at().empty());
  EXPECT_EQ(history.started_from()->run_id, "0123");
  history.resume(12);
  EXPECT_EQ(history.resumed_at(), std::vector<std::uint64_t>{12});
}

TEST(TrainingHistory, GoesOnFromItsState) {
  TrainingHistory history(1, "data 3");
  (void)history.with_time_before(seconds(3));
  history.begin_membership(json::array({{{"epoch", 0}}}), 20);
  (void)history.count(30, {{"outer", 1}});
  StateSaver saver;
  history.visit_state(saver);
  const std::vector<std::byte> bytes = saver.take();
  TrainingHistory restored(1, "data 3");
  StateRestorer restorer(bytes, "a test");
  restored.visit_state(restorer);
  restorer.finish();
  EXPECT_EQ(restored.as_counted(31), history.as_counted(31));
  EXPECT_EQ(restored.with_time_before(seconds(1)).seconds, 4);
  EXPECT_EQ(restored.earlier_memberships(), history.earlier_memberships());
}

}  // namespace
}  // namespace droptest::experiments::training_history_test
