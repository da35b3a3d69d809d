// SPDX-License-Identifier: Apache-2.0
#include "comm/device/shared_library.h"

#include <gtest/gtest.h>

#include "sim/error.h"

namespace droptest::comm::shared_library_test {
namespace {

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SharedLibrary, TakesTheFirstNameThatLoads) {
  const SharedLibrary library({"libdroptest-no-such.so.1", "libm.so.6"}, "a test");
  EXPECT_EQ(8.0, library.function<double(double)>("cbrt")(512.0));
}

TEST(SharedLibrary, SaysWhatWasTriedAndWhatFor) {
  const std::string text = error_of([] { SharedLibrary({"libdroptest-a.so", "libdroptest-b.so"}, "matrix products"); });
  EXPECT_NE(std::string::npos, text.find("matrix products needs")) << text;
  EXPECT_NE(std::string::npos, text.find("libdroptest-a.so")) << text;
  EXPECT_NE(std::string::npos, text.find("libdroptest-b.so")) << text;
}

TEST(SharedLibrary, NamesAMissingFunction) {
  const SharedLibrary library({"libm.so.6"}, "a test");
  const std::string text = error_of([&] { library.function<void()>("droptest_no_such_function"); });
  EXPECT_EQ("libm.so.6 has no function droptest_no_such_function; a newer version is needed", text);
}

}  // namespace
}  // namespace droptest::comm::shared_library_test
