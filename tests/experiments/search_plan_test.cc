// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/search_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "tests/comm/error_text.h"

namespace droptest::experiments::search_plan_test {
namespace {

using testing::HasSubstr;

constexpr const char* kLoss = R"("network": {"loss": {"model": "bernoulli", "loss_rate": 0.05}})";

Spec spec_of(const std::string& rest) {
  return {comm::parse_json(R"({"name": "t", "data": {"text": "a"}, "parallel": {"tensor": 2}, )" + rest + "}", "s"),
          "s.json"};
}

SearchPlan search_plan(const std::string& section) {
  return SearchPlan(spec_of(std::string(kLoss) + R"(, "search": )" + section));
}

std::string error_of(const std::string& rest) {
  return config_error_of([&rest] { (void)SearchPlan(spec_of(rest)); });
}

std::string error_of_section(const std::string& section) {
  return error_of(std::string(kLoss) + R"(, "search": )" + section);
}

TEST(SearchPlan, EveryMemberHasADefaultAndTheSectionToo) {
  const SearchSettings settings = SearchPlan(spec_of(kLoss)).settings();
  EXPECT_EQ(settings.pointer, "/network/loss/loss_rate");
  EXPECT_EQ(settings.low, 0.001);
  EXPECT_EQ(settings.high, 0.5);
  EXPECT_EQ(settings.tolerance_percent, 1);
  EXPECT_EQ(settings.seeds, 3U);
  EXPECT_EQ(settings.max_seeds, 9U);
  EXPECT_EQ(search_plan(R"({"seeds": 4})").settings().max_seeds, 12U);
  EXPECT_EQ(search_plan(R"({"low": "2%", "high": "20%"})").settings().low, 0.02);
}

TEST(SearchPlan, ItsRunsAreThoseOfASweepOverTheSameRates) {
  const SearchPlan plan = search_plan(R"({"low": "1%"})");
  const SweepPlan sweep = plan_sweep(spec_of(R"("network": {"loss": {"model": "bernoulli", "loss_rate": 0.5}},
      "sweep": {"cross": {"/network/loss": [{"model": "none"}, {"model": "bernoulli", "loss_rate": "7%"}]}},
      "repeat": {"seeds": 2})"));
  EXPECT_EQ(plan.lossless(0).run.run_id, sweep.runs[0].run.run_id);
  EXPECT_EQ(plan.at(0.07, 0).run.run_id, sweep.runs[1].run.run_id);
  EXPECT_EQ(plan.lossless(1).run.run_id, sweep.runs[2].run.run_id);
  EXPECT_EQ(plan.at(0.07, 1).run.run_id, sweep.runs[3].run.run_id);
  EXPECT_EQ(plan.at(0.07, 1).seeds, (Seeds{2, 2, 2}));
  EXPECT_EQ(plan.at(0.07, 1).run.spec, sweep.runs[3].run.spec);
}

TEST(SearchPlan, ASearchSectionChangesNoRunAndIsNoPartOfIt) {
  const SweepPlan with = plan_sweep(spec_of(std::string(kLoss) + R"(, "search": {"low": 0.2})"));
  const SweepPlan without = plan_sweep(spec_of(kLoss));
  ASSERT_EQ(with.runs.size(), 1U);
  EXPECT_EQ(with.runs[0].run.run_id, without.runs[0].run.run_id);
  EXPECT_FALSE(with.runs[0].run.spec.contains("search"));
}

TEST(SearchPlan, WhatHasNoMeaningIsRefusedByItsPointer) {
  EXPECT_EQ(error_of_section(R"({"low": 0})"),
            "s.json: /search/low: got 0.0, want a rate above 0: at 0 nothing is lost, which is the lossless twin");
  EXPECT_EQ(error_of_section(R"({"low": "20%", "high": 0.1})"),
            "s.json: /search/high: got 0.1, want more than low, which is \"20%\"");
  EXPECT_EQ(error_of_section(R"({"seeds": 5, "max_seeds": 4})"),
            "s.json: /search/max_seeds: got 4, want at least seeds, 5");
  EXPECT_THAT(error_of_section(R"({"seeds": 5, "max_runs": 14})"),
              HasSubstr("s.json: /search/max_runs: got 14, want at least 15"));
  EXPECT_THAT(error_of_section(R"({"seeds": 1})"), HasSubstr("s.json: /search/seeds: got 1"));
  EXPECT_THAT(error_of_section(R"({"tolerance": 1})"), HasSubstr("s.json: /search/tolerance: got an unknown key"));
  EXPECT_THAT(error_of_section(R"({"pointer": "/network/los/loss_rate"})"),
              HasSubstr("s.json: /search/pointer: no member \"los\" in /network; did you mean \"loss\"?"));
  EXPECT_EQ(error_of_section(R"({"pointer": "/training/learning_rate"})"),
            "s.json: /search/pointer: got \"/training/learning_rate\", want the place of a rate in /network");
  EXPECT_THAT(error_of(std::string(kLoss) + R"(, "sweep": {"cross": {"/training/steps": [1, 2]}}, "search": {})"),
              HasSubstr("s.json: /sweep: got a sweep, want a spec of one run to search from"));
  EXPECT_THAT(error_of_section(R"({"pointer": "/network/path"})"),
              HasSubstr("s.json: /network/path: got 0.001, want one of"));
}

TEST(SearchPlan, APointerThatIsOverriddenElsewhereIsRefused) {
  EXPECT_THAT(error_of(R"("network": {"loss": {"model": "bernoulli", "loss_rate": 0.1},
                                     "reduce": {"loss": {"model": "none"}}, "gather": {"loss": {"model": "none"}}})"),
              HasSubstr("s.json: /search/pointer: got \"/network/loss/loss_rate\", which changes nothing in this run"));
}

TEST(SearchPlan, SeedsThatRunOutAreRefused) {
  EXPECT_THAT(error_of(R"("seed": 18446744073709551614, )" + std::string(kLoss)),
              HasSubstr("/search/max_seeds: got 9, want at most 2 from seed 18446744073709551614"));
}

}  // namespace
}  // namespace droptest::experiments::search_plan_test
