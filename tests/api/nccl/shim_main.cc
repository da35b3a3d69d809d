// SPDX-License-Identifier: Apache-2.0
// Starts itself again with the library under test loaded before all others, as users do.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (std::getenv("DROPTEST_NCCL_LIBRARY") == nullptr) {
    setenv("LD_PRELOAD", DROPTEST_SHIM, 1);
    setenv("DROPTEST_NCCL_LIBRARY", DROPTEST_DOUBLE, 1);
    execv("/proc/self/exe", argv);
    std::perror("execv");
    return 1;
  }
  unsetenv("LD_PRELOAD");  // not for programs that tests start
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
