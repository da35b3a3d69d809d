// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/line_relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/files/atomic_file.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::line_relay_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

class Lines : public ::testing::Test {
 protected:
  using StepsAndSeconds = std::vector<std::pair<int, double>>;

  static std::string text_of(const StepsAndSeconds& lines) {
    std::string text;
    for (const auto& [step, seconds] : lines) text += json({{"step", step}, {"seconds", seconds}}).dump() + "\n";
    return text;
  }
  /// An attempt adds lines to the file.
  void append(const StepsAndSeconds& lines) const { std::ofstream(path_, std::ios::app) << text_of(lines); }
  /// An attempt begins with the lines up to its checkpoint, in a new file.
  void begin_with(const StepsAndSeconds& lines) const { write_file_atomically(path_, text_of(lines)); }
  LineRelay relay() {
    return {path_, [this](const json& line) { passed_.push_back(line["step"]); }};
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.path() + "/metrics.jsonl";
  std::vector<int> passed_;
};

using LineRelayOfAttempts = Lines;

TEST_F(LineRelayOfAttempts, PassesEachStepOnce) {
  LineRelay lines = relay();
  append({{0, 0.0}, {1, 0.1}, {2, 0.2}});
  lines.pass();
  lines.begin_attempt();
  begin_with({{0, 0.0}, {1, 0.1}});
  append({{2, 5.2}, {3, 5.3}});
  lines.pass();
  EXPECT_THAT(passed_, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(lines.written(), 3U);
}

TEST_F(LineRelayOfAttempts, LeavesOutTheLinesOfThePartThatTheRunContinues) {
  append({{0, 0.0}, {1, 0.1}, {2, 0.2}});
  LineRelay lines = relay();
  lines.pass();
  EXPECT_THAT(passed_, IsEmpty());
  EXPECT_EQ(lines.written(), std::nullopt);
  begin_with({{0, 0.0}, {1, 0.1}});
  append({{2, 5.2}});
  lines.pass();
  EXPECT_THAT(passed_, ElementsAre(2)) << "step 2 was done again, at another time";
}

/// The steps of an earlier attempt are not lost a second time by one that ends before it has repeated them.
TEST_F(LineRelayOfAttempts, AnAttemptHasWrittenOnlyItsOwnLines) {
  LineRelay lines = relay();
  append({{0, 0.0}, {3, 0.3}, {4, 0.4}});
  lines.pass();
  EXPECT_EQ(lines.written(), 4U);
  lines.begin_attempt();
  lines.pass();
  EXPECT_EQ(lines.written(), std::nullopt);
  begin_with({{0, 0.0}, {3, 0.3}});
  lines.pass();
  EXPECT_EQ(lines.written(), 3U) << "the line of its checkpoint";
  append({{4, 9.4}});
  lines.pass();
  EXPECT_EQ(lines.written(), 4U) << "a step that is done again is written, although it is not passed on";
  EXPECT_THAT(passed_, ElementsAre(0, 3, 4));
}

}  // namespace
}  // namespace droptest::experiments::line_relay_test
