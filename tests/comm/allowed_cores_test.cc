// SPDX-License-Identifier: Apache-2.0
#include "comm/allowed_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace droptest::comm::allowed_cores_test {
namespace {

using testing::ElementsAre;

TEST(AllowedCores, AreThoseOfTheCallersMaskAndNotTheMachines) {
  const std::vector<int> all = allowed_cores();
  ASSERT_FALSE(all.empty());
  std::thread([&all] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(all.back()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_THAT(allowed_cores(), ElementsAre(all.back()));
  }).join();
  EXPECT_EQ(allowed_cores(), all);
}

}  // namespace
}  // namespace droptest::comm::allowed_cores_test
