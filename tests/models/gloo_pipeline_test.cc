// SPDX-License-Identifier: Apache-2.0
// If a process of a pipeline dies in a phase of a training step, every other process ends and names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/rank_processes.h"
#include "tests/models/tiny_pipeline.h"

namespace droptest::models::gloo_pipeline_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

/// Longer than any test: the failure must be found without it.
constexpr std::chrono::seconds kLong{50};
constexpr int kRanks = 3;

void expect_survivors_name(int culprit, const std::string& scenario, const std::string& text) {
  SCOPED_TRACE("rank " + std::to_string(culprit) + ", " + scenario);
  const comm::TemporaryDirectory directory;
  const std::vector<comm::RankReport> reports = comm::run_processes(
      {.world_size = kRanks, .name = scenario, .culprit = culprit, .timeout = kLong}, directory.path());
  for (int r = 0; r < kRanks; ++r) {
    if (r == culprit) continue;
    const comm::RankReport& report = reports[static_cast<std::size_t>(r)];
    EXPECT_THAT(report.text,
                AllOf(StartsWith("error CommError: "), HasSubstr("rank " + std::to_string(culprit) + " " + text)));
    EXPECT_TRUE(WIFEXITED(report.wait_status) && WEXITSTATUS(report.wait_status) == 2);
  }
}

/// The first and the last place of each kind of step, one place in the middle, and the two places after the steps.
std::vector<int> phases_of(const std::vector<PipelineStep>& steps) {
  std::vector<int> places = {static_cast<int>(steps.size()) / 2, static_cast<int>(steps.size()),
                             static_cast<int>(steps.size()) + 1};
  using Kind = PipelineStep::Kind;
  for (const Kind kind : {Kind::kReceive, Kind::kCompute, Kind::kSend}) {
    const auto is = [kind](const PipelineStep& step) { return step.kind == kind; };
    places.push_back(static_cast<int>(std::ranges::find_if(steps, is) - steps.begin()));
    places.push_back(static_cast<int>(steps.rend() - std::find_if(steps.rbegin(), steps.rend(), is)) - 1);
  }
  return places;
}

TEST(GlooPipeline, SurvivorsOfAKilledRankNameItWhateverThePhaseIs) {
  const PipelineProgram program = make_program(failing_schedule());
  for (int culprit = 0; culprit < kRanks; ++culprit) {
    std::vector<std::thread> at_once;  // most of the time is spent waiting
    for (const int place : phases_of(program.ranks[static_cast<std::size_t>(culprit)])) {
      at_once.emplace_back(
          [=] { expect_survivors_name(culprit, "kill:" + std::to_string(place), "died or lost its connection"); });
    }
    for (std::thread& thread : at_once) thread.join();
  }
}

TEST(GlooPipeline, PeersOfARankThatThrowsNameItsError) {
  const PipelineProgram program = make_program(failing_schedule());
  std::vector<std::thread> at_once;
  for (const int place : phases_of(program.ranks[1])) {
    at_once.emplace_back([=] { expect_survivors_name(1, "throw:" + std::to_string(place), "failed: "); });
  }
  for (std::thread& thread : at_once) thread.join();
}

}  // namespace
}  // namespace droptest::models::gloo_pipeline_test
