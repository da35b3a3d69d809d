// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/core_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/error.h"

namespace droptest::experiments::core_shares_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(CoreShares, AreNeighboursOfEqualNumberAsFarAsCanBe) {
  const CoreShares shares({0, 1, 2, 3, 8, 9, 10, 11}, 3);
  EXPECT_THAT(shares.cores(0), ElementsAre(0, 1));
  EXPECT_THAT(shares.cores(1), ElementsAre(2, 3, 8));
  EXPECT_THAT(shares.cores(2), ElementsAre(9, 10, 11));
}

TEST(CoreShares, OneJobHasAllCores) { EXPECT_THAT(CoreShares({4, 6}, 1).cores(0), ElementsAre(4, 6)); }

TEST(CoreShares, MoreJobsThanCoresAreLeftToTheKernel) {
  const CoreShares shares({0, 1}, 3);
  for (std::size_t place = 0; place < 3; ++place) EXPECT_THAT(shares.cores(place), IsEmpty());
}

TEST(CoreShares, AShareIsOneJobsUntilItIsGivenBack) {
  CoreShares shares({0, 1}, 2);
  EXPECT_EQ(shares.take(), 0U);
  EXPECT_EQ(shares.take(), 1U);
  EXPECT_THROW(shares.take(), CheckError);
  shares.give_back(0);
  EXPECT_EQ(shares.take(), 0U);
}

}  // namespace
}  // namespace droptest::experiments::core_shares_test
