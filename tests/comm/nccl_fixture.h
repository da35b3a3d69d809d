// SPDX-License-Identifier: Apache-2.0
// Set-up and final checks of tests over the test double of NCCL.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/fake_streams.h"

namespace droptest::comm {

/// Checks that each test leaves nothing behind, however its ranks end.
class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override { fake_nccl::reset(); }
  void TearDown() override {
    EXPECT_THAT(fake_nccl::misuses(), ::testing::IsEmpty());
    EXPECT_EQ(fake_nccl::live_communicators(), 0U);
    EXPECT_EQ(fake_nccl::live_streams(), 0U);
    EXPECT_EQ(fake_nccl::live_events(), 0U);
    EXPECT_EQ(fake_nccl::live_allocations(), 0U);
  }
};

}  // namespace droptest::comm
