// SPDX-License-Identifier: Apache-2.0
// The real library, which needs no device to be loaded.
#include <gtest/gtest.h>
#include <nccl.h>

#include <string>

namespace droptest::comm::nccl_library_test {
namespace {

TEST(NcclLibrary, IsLoadedByTheFirstCallAndHasAllThatTheBackendCalls) {
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);  // throws if one of the functions is missing
  EXPECT_GE(version, 21800);
  EXPECT_NE(std::string(ncclGetErrorString(ncclInvalidUsage)).find("invalid usage"), std::string::npos);
}

}  // namespace
}  // namespace droptest::comm::nccl_library_test
