// SPDX-License-Identifier: Apache-2.0
// The NCCL backend on real devices. Ranks are processes, which share devices if there are not enough. The tests are
// skipped with the reason if there is no device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/comm/rank_processes.h"
#include "tests/comm/through_device.h"

namespace droptest::comm::nccl_device_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::StartsWith;

void expect_ok(const Scenario& scenario) {
  SCOPED_TRACE(scenario.name + " of " + std::to_string(scenario.world_size));
  const TemporaryDirectory directory;
  for (const RankReport& report : run_processes(scenario, directory.path())) {
    EXPECT_THAT(report.text, StartsWith("ok "));
  }
}

TEST(NcclDevice, ResultsAreThoseOfTheHostToRounding) {
  DROPTEST_NEEDS_DEVICE();
  for (const int world_size : {1, 2, 4}) expect_ok({.world_size = world_size, .name = "compare"});
}

TEST(NcclDevice, ResultsOfPartsAreThoseOfTheHostToRounding) {
  DROPTEST_NEEDS_DEVICE();
  for (const int world_size : {2, 4}) expect_ok({.world_size = world_size, .name = "parts"});
}

TEST(NcclDevice, FatesAndResultsOfPathsOverMessagesAreThoseOfTheHostBitForBit) {
  DROPTEST_NEEDS_DEVICE();
  for (const int world_size : {2, 4}) {
    for (const char* path : {"direct", "ring", "halving_doubling"}) {
      expect_ok({.world_size = world_size, .name = std::string("lossy:") + path});
    }
  }
}

TEST(NcclDevice, EverySurvivorOfARankThatFailsEndsInTime) {
  DROPTEST_NEEDS_DEVICE();
  struct Failing {
    const char* how;
    std::chrono::milliseconds timeout;  ///< long if the failure must be found without it
    const char* text;
  };
  for (const Failing& failing :
       {Failing{"throw", 50s, "rank 1 failed: loss is not a number"},
        Failing{"kill", 5s, "rank 1(: dead, stopped or cut off| died or lost its connection)"},
        Failing{"stop", 5s, "no (answer from rank 1: dead, stopped or cut off|data from rank 1 for 5000 ms)"}}) {
    SCOPED_TRACE(failing.how);
    const TemporaryDirectory directory;
    const auto reports = run_processes(
        {.world_size = 4, .name = std::string("world:") + failing.how, .culprit = 1, .timeout = failing.timeout},
        directory.path());
    for (const std::size_t r : {0U, 2U, 3U}) {
      EXPECT_THAT(reports[r].text, AllOf(StartsWith("error CommError: all_reduce: rank " + std::to_string(r) + " of 4"),
                                         ContainsRegex(failing.text)));
    }
  }
}

}  // namespace
}  // namespace droptest::comm::nccl_device_test
