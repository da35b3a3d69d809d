// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/layout_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/gpt2/gpt2_tensors.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::layout_plan_test {
namespace {

using nlohmann::json;

/// Data 4 x tensor 4 x pipeline 2 with ZeRO 1. Numbers of parameters and shapes that tests below add up by other ways.
RunConfig three_dimensions() {
  RunConfig config = resolved(kTwoRanks, {"/parallel/tensor=4", "/parallel/data=4", "/parallel/zero=1"}).config;
  config.parallel.pipeline = 2;
  return config;
}

TEST(LayoutPlan, ThirtyTwoRanksAreAsInTheGoldenFile) {
  json plan = layout_plan(three_dimensions());
  plan.erase("schedule");
  EXPECT_EQ(plan, comm::load_json(DROPTEST_VECTORS "/layout_4x4x2.json").at("plan"));
}

TEST(LayoutPlan, SchedulesHaveTheTimesOfTheirStages) {
  const json schedule =
      layout_plan(
          resolved(kTwoRanks, {"/parallel/tensor=1", "/parallel/pipeline=2", "/training/accumulation=2"}).config)
          .at("schedule");
  EXPECT_EQ(schedule.at("csv"), "0F0,0F1,,,0B0,,,0B1\n,1F0,1B0,,1F1,1B1\n");
  EXPECT_EQ(schedule.at("in_flight"), json({2, 1}));
  // Two blocks of 12 x 128 on each rank, and the head's 256 columns on the second: 1 on average, 3 passes of each.
  const double first = 2 * 3072.0 / 6400 / 2 / 3;
  const double last = 2 * 3328.0 / 6400 / 2 / 3;
  EXPECT_NEAR(schedule.at("makespan").get<double>(), first + 6 * last + 2 * first, 1e-12);
  EXPECT_NEAR(schedule.at("idle_share").get<double>(), 1 - 2 / (2 * (3 * first + 6 * last)), 1e-12);
  EXPECT_NEAR(schedule.at("ranks")[1][0].at("begin").get<double>(), first, 1e-12);
  EXPECT_EQ(schedule.at("ranks")[1][1].at("action"), "1B0");
}

TEST(LayoutPlan, ChunksAreSeveralStagesOfARank) {
  const json plan = layout_plan(resolved(kTwoRanks, {"/parallel/tensor=1", "/parallel/pipeline=2", "/parallel/chunks=2",
                                                     "/parallel/schedule=round_robin"})
                                    .config);
  EXPECT_EQ(plan.at("ranks")[0].at("blocks"), json::parse("[[0, 1], [2, 3]]"));
  EXPECT_EQ(plan.at("ranks")[1].at("blocks"), json::parse("[[1, 2], [3, 4]]"));
  EXPECT_EQ(plan.at("tensors")[0].at("stages"), json::parse("[0, 3]")) << "the tied embedding";
  EXPECT_EQ(plan.at("layers").back().at("stage"), 3);
}

TEST(LayoutPlan, EachRankIsOnceInEachKindOfGroupAndNeighboursPointBack) {
  for (const bool megatron : {false, true}) {
    RunConfig config = three_dimensions();
    if (megatron) config.parallel.order = comm::kMegatronOrder;
    const json plan = layout_plan(config);
    ASSERT_EQ(plan.at("ranks").size(), 32U);
    for (const auto& [dimension, groups] : plan.at("groups").items()) {
      std::multiset<int> members;
      for (const json& group : groups) {
        EXPECT_EQ(group.size(), plan.at("layout").at(dimension).get<std::size_t>());
        for (std::size_t i = 0; i < group.size(); ++i) {
          const json& rank = plan.at("ranks").at(group[i].get<std::size_t>());
          members.insert(group[i].get<int>());
          EXPECT_EQ(rank.at("coordinates").at(dimension), i);
          const json& next = rank.at("neighbours").at(dimension).at("next");
          if (dimension == "pipeline" && i + 1 == group.size()) {
            EXPECT_TRUE(next.is_null());
          } else {
            EXPECT_EQ(next, group[(i + 1) % group.size()]);
            EXPECT_EQ(plan.at("ranks").at(next.get<std::size_t>()).at("neighbours").at(dimension).at("previous"),
                      group[i]);
          }
        }
      }
      EXPECT_EQ(members.size(), 32U);
      EXPECT_EQ(std::set<int>(members.begin(), members.end()).size(), 32U);
    }
  }
}

// The parts of the ranks of one replica add up to the model: replicated tensors count once, and the tied embedding is
// at both ends of the pipeline, of which the last one updates it.
TEST(LayoutPlan, PartsAddUpToTheModel) {
  const RunConfig config = three_dimensions();
  const json plan = layout_plan(config);
  std::map<std::string, std::uint64_t> whole;
  for (const models::Gpt2Tensor& tensor : models::gpt2_tensors(config.model, 1, 0)) {
    whole[tensor.name] = tensor.slice.full_elems();
  }
  std::vector<std::uint64_t> of_stage(2);
  for (const json& tensor : plan.at("tensors")) {
    ASSERT_EQ(tensor.at("of_tensor_rank").size(), 4U);
    std::uint64_t sum = 0;
    for (const json& part : tensor.at("of_tensor_rank")) sum += part.at("parameters").get<std::uint64_t>();
    const std::uint64_t copies = tensor.at("sharding") == "replicated" ? 4 : 1;
    EXPECT_EQ(sum, copies * whole.at(tensor.at("name"))) << tensor;
    for (const json& stage : tensor.at("stages")) of_stage[stage.get<std::size_t>()] += sum;
  }
  std::vector<std::uint64_t> held(2);
  std::vector<std::uint64_t> updated(2);
  for (const json& rank : plan.at("ranks")) {
    const auto stage = rank.at("coordinates").at("pipeline").get<std::size_t>();
    updated[stage] += rank.at("updated_parameters").get<std::uint64_t>();
    if (rank.at("coordinates").at("data") == 0) held[stage] += rank.at("parameters").get<std::uint64_t>();
  }
  EXPECT_EQ(held, of_stage);
  of_stage[0] -= whole.at("wte.weight");
  EXPECT_EQ(updated, of_stage) << "ZeRO deals the state of a stage out over replicas";
}

TEST(LayoutPlan, UnevenHeadsGiveTensorRanksTheirOwnShapes) {
  const RunConfig config = resolved(kTwoRanks, {"/parallel/tensor=4", "/model/heads=25", "/model/width=100"}).config;
  const json plan = layout_plan(config);
  for (const json& tensor : plan.at("tensors")) {
    if (tensor.at("name") != "h.0.attn.c_attn.weight") continue;
    json shapes = json::array();
    for (const json& part : tensor.at("of_tensor_rank")) shapes.push_back(part.at("shape"));
    EXPECT_EQ(shapes, json::parse("[[100, 84], [100, 72], [100, 72], [100, 72]]"));
    return;
  }
  FAIL() << "no such tensor";
}

TEST(LayoutPlan, PatternsFollowTheStageOfZero) {
  const auto patterns = [](const std::vector<std::string>& overrides) {
    const json layers = layout_plan(resolved(kTwoRanks, overrides).config).at("layers");
    return layers.at(0).at("gradients").get<std::string>() + ", " + layers.at(0).at("parameters").get<std::string>();
  };
  EXPECT_EQ(patterns({}), "none, none");
  EXPECT_EQ(patterns({"/parallel/data=2"}), "all_reduce, none");
  EXPECT_EQ(patterns({"/parallel/data=2", "/parallel/zero=2"}), "reduce_scatter, all_gather after the update");
  EXPECT_EQ(patterns({"/parallel/data=2", "/parallel/zero=3"}), "reduce_scatter, all_gather in both passes");
  const json plan = layout_plan(resolved(kTwoRanks, {"/parallel/tensor=1", "/parallel/data=2"}).config);
  for (const json& layer : plan.at("layers")) {
    EXPECT_TRUE(layer.at("forward").empty() && layer.at("backward").empty()) << "one rank has all of a layer";
  }
}

}  // namespace
}  // namespace droptest::experiments::layout_plan_test
