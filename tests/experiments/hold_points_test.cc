// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/hold_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/comm/error_text.h"
#include "tests/comm/fake_clock.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::hold_points_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

comm::Environment naming(const TemporaryFolder& folder) { return {{"DROPTEST_HOLD_FOLDER", folder.path()}}; }

void put(const std::string& path) { std::ofstream file(path); }

TEST(HoldPoints, AProgramWithoutTheVariableHasNone) { EXPECT_FALSE(HoldPoints::of({{"HOME", "/"}})); }

TEST(HoldPoints, ARankSaysThatItWaitsAndGoesOnWhenTheFileIsGone) {
  const TemporaryFolder folder;
  comm::FakeClock clock;
  put(folder.path() + "/step-3");
  const auto holds = HoldPoints::of(naming(folder), clock);
  ASSERT_TRUE(holds);
  const std::string said = folder.path() + "/step-3.rank-1.pid-" + std::to_string(::getpid());
  int sleeps = 0;
  clock.on_sleep = [&] {
    EXPECT_TRUE(std::filesystem::exists(said));
    if (++sleeps == 3) std::filesystem::remove(folder.path() + "/step-3");
  };
  holds->wait_before_step(1, 2);
  holds->wait_before_step(1, 4);
  EXPECT_EQ(sleeps, 0) << "other steps";
  EXPECT_FALSE(std::filesystem::exists(said));
  holds->wait_before_step(1, 3);
  EXPECT_EQ(sleeps, 3);
  holds->wait_before_step(1, 3);
  EXPECT_EQ(sleeps, 3);
}

TEST(HoldPoints, EachPointHasANameOfItsOwn) {
  const TemporaryFolder folder;
  comm::FakeClock clock;
  const auto holds = HoldPoints::of(naming(folder), clock);
  const std::vector<std::pair<std::string, std::function<void()>>> points = {
      {"step-3", [&] { holds->wait_before_step(0, 3); }},
      {"forward-3", [&] { holds->wait_after_forward(0, 3); }},
      {"all-reduce", [&] { holds->wait_before_all_reduce(0); }}};
  for (std::size_t held = 0; held < points.size(); ++held) {
    const std::string file = folder.path() + "/" + points[held].first;
    put(file);
    int sleeps = 0;
    clock.on_sleep = [&] {
      ++sleeps;
      std::filesystem::remove(file);
    };
    for (std::size_t other = 0; other < points.size(); ++other) {
      if (other != held) points[other].second();
    }
    EXPECT_EQ(sleeps, 0) << file;
    points[held].second();
    EXPECT_EQ(sleeps, 1) << file;
  }
}

TEST(HoldPoints, ARankDoesNotWaitForATestThatHasDied) {
  const TemporaryFolder folder;
  comm::FakeClock clock;
  put(folder.path() + "/step-3");
  const auto holds = HoldPoints::of(naming(folder), clock);
  clock.on_sleep = [&] { clock.advance(std::chrono::minutes(1)); };
  EXPECT_THAT(config_error_of([&] { holds->wait_before_step(1, 3); }),
              AllOf(HasSubstr("rank 1 has waited for 10 minutes"), HasSubstr("remove " + folder.path() + "/step-3")));
}

TEST(HoldPoints, AFolderThatIsNotThereAndAnUnknownPointAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(config_error_of([&] {
                (void)HoldPoints::of({{"DROPTEST_HOLD_FOLDER", folder.path() + "/absent"}});
              }),
              AllOf(HasSubstr("DROPTEST_HOLD_FOLDER: read "), HasSubstr("/absent: No such file or directory")));
  put(folder.path() + "/all-reduce");
  put(folder.path() + "/step-12.rank-0.pid-7");
  EXPECT_TRUE(HoldPoints::of(naming(folder)));
  for (const char* name : {"step-", "step-x", "step3", "forward-3a", "barrier"}) {
    const std::string path = folder.path() + "/" + name;
    put(path);
    EXPECT_THAT(config_error_of([&] { (void)HoldPoints::of(naming(folder)); }),
                HasSubstr("DROPTEST_HOLD_FOLDER: " + path + ": got an unknown point, want step-N"));
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace droptest::experiments::hold_points_test
