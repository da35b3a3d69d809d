// SPDX-License-Identifier: Apache-2.0
// Records of event files, byte for byte; test_tensorboard.py has TensorBoard's own reader.
#include "experiments/watch/event_file.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace droptest::experiments::event_file_test {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    text += two;
  }
  return text;
}

std::string scalar(std::string_view tag, double value, std::uint64_t step = 1) {
  SummaryEvent event(0, step);
  event.add_scalar(tag, value);
  return event.data();
}

TEST(EventFile, FirstEventNamesTheVersion) {
  EXPECT_EQ(hex(framed_record(version_event(0))),
            "1800000000000000a37f4b22090000000000000000"
            "1a0d627261696e2e4576656e743a32eedf28a3");
}

TEST(EventFile, ScalarHasTheBytesOfTensorFlow) {
  SummaryEvent event(1, 3);
  event.add_scalar("loss", 2.5);
  EXPECT_EQ(hex(framed_record(event.data())),
            "1a00000000000000129bd82d09000000000000f03f10032a0d0a0b0a046c6f737315000020407e581965");
}

TEST(EventFile, LongNumbersTakeSeveralBytes) {
  EXPECT_EQ(hex(scalar("a", 0, 300)).substr(18, 6), "10ac02");
  EXPECT_EQ(hex(scalar(std::string(200, 'a'), 0)).substr(22, 16), "2ad3010ad0010ac8") << "lengths of 211, 208 and 200";
  EXPECT_EQ(hex(scalar("a", 0, 0)).substr(18, 2), "2a") << "step 0 is left out";
}

TEST(EventFile, NumbersThatFloatCannotHoldAreInfiniteOrNone) {
  const auto bits = [](double value) { return hex(scalar("a", value)).substr(hex(scalar("a", 0)).size() - 8); };
  EXPECT_EQ(bits(1e300), "0000807f");
  EXPECT_EQ(bits(-1e300), "000080ff");
  EXPECT_EQ(bits(std::numeric_limits<double>::infinity()), "0000807f");
  EXPECT_EQ(bits(std::nan("")), "0000c07f");
  EXPECT_EQ(bits(1), "0000803f");
}

TEST(EventFile, RecordOfAScalarIsSmall) {
  std::uint64_t bytes = 0;
  for (std::uint64_t step = 0; step < 100000; ++step) bytes += framed_record(scalar("train_loss", 2.5, step)).size();
  EXPECT_LT(bytes, 10000000U);
}

TEST(EventFile, EmptySummaryHasNoValues) {
  SummaryEvent event(0, 1);
  EXPECT_TRUE(event.empty());
  event.add_scalar("a", 1);
  EXPECT_FALSE(event.empty());
}

}  // namespace
}  // namespace droptest::experiments::event_file_test
