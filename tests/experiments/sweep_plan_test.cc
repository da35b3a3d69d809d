// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/sweep_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "tests/comm/error_text.h"

namespace droptest::experiments::sweep_plan_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string spec_text(const std::string& rest) {
  const std::string ranks = rest.find("\"parallel\"") == std::string::npos ? R"("parallel": {"tensor": 2}, )" : "";
  return R"({"name": "t", )" + ranks + R"("data": {"text": "a"})" + rest + "}";
}

SweepPlan plan(const std::string& rest) { return plan_sweep({comm::parse_json(spec_text(rest), "s"), "s.json"}); }

std::string error_of(const std::string& rest) {
  return config_error_of([&rest] { (void)plan(rest); });
}

/// "POINT seed" of each run.
std::vector<std::string> order(const SweepPlan& plan) {
  std::vector<std::string> lines;
  for (const PlannedRun& run : plan.runs) {
    lines.push_back(comm::canonical_json(run.point) + " " + std::to_string(run.seeds.network));
  }
  return lines;
}

TEST(SweepPlan, WithoutASweepThereIsOneRun) {
  const SweepPlan one = plan(R"(, "seed": 7, "description": "why")");
  ASSERT_EQ(one.runs.size(), 1U);
  EXPECT_EQ(one.runs[0].seeds, (Seeds{7, 7, 7}));
  EXPECT_EQ(one.runs[0].point, json::object());
  EXPECT_EQ(one.runs[0].run.config.seeds, (Seeds{7, 7, 7}));
  EXPECT_EQ(one.name, "t");
  EXPECT_EQ(one.description, "why");
}

TEST(SweepPlan, CrossTakesEveryCombinationTheLastPointerFastest) {
  const SweepPlan crossed = plan(R"(, "sweep": {"cross": {"/training/steps": [1, 2], "/model/layers": [3, 4, 5]}})");
  EXPECT_EQ(order(crossed), (std::vector<std::string>{
                                R"({"/model/layers":3,"/training/steps":1} 1)",
                                R"({"/model/layers":3,"/training/steps":2} 1)",
                                R"({"/model/layers":4,"/training/steps":1} 1)",
                                R"({"/model/layers":4,"/training/steps":2} 1)",
                                R"({"/model/layers":5,"/training/steps":1} 1)",
                                R"({"/model/layers":5,"/training/steps":2} 1)",
                            }));
  EXPECT_EQ(crossed.runs[3].run.config.model.layers, 4);
  EXPECT_EQ(crossed.runs[3].run.config.training.steps, 2U);
}

TEST(SweepPlan, ZipTakesElementByElementAndIsCrossedWithCross) {
  EXPECT_EQ(order(plan(R"(, "sweep": {"zip": {"/training/steps": [1, 2], "/model/layers": [3, 4]},
                                      "cross": {"/training/gradient_clip": [0, 9]}})")),
            (std::vector<std::string>{
                R"({"/model/layers":3,"/training/gradient_clip":0,"/training/steps":1} 1)",
                R"({"/model/layers":3,"/training/gradient_clip":9,"/training/steps":1} 1)",
                R"({"/model/layers":4,"/training/gradient_clip":0,"/training/steps":2} 1)",
                R"({"/model/layers":4,"/training/gradient_clip":9,"/training/steps":2} 1)",
            }));
}

TEST(SweepPlan, RepeatsArePairedSeedsAndComeAsWholePasses) {
  const SweepPlan repeated =
      plan(R"(, "seed": 10, "repeat": {"seeds": 2}, "sweep": {"cross": {"/model/layers": [3, 4]}})");
  EXPECT_EQ(order(repeated), (std::vector<std::string>{R"({"/model/layers":3} 10)", R"({"/model/layers":4} 10)",
                                                       R"({"/model/layers":3} 11)", R"({"/model/layers":4} 11)"}));
  EXPECT_EQ(repeated.runs[2].run.config.seeds, (Seeds{11, 11, 11}));
  EXPECT_EQ(repeated.runs[2].run.config.network.seed, 11U);
  EXPECT_NE(repeated.runs[0].run.run_id, repeated.runs[2].run.run_id);
  const SweepPlan alone = plan(R"(, "seed": 11, "model": {"layers": 3})");
  EXPECT_EQ(repeated.runs[2].run.run_id, alone.runs[0].run.run_id) << "a repeat is the run of its seed";
  EXPECT_EQ(repeated.runs[2].run.spec, alone.runs[0].run.spec);
}

TEST(SweepPlan, RepeatsOfSingleSeedsAreCrossed) {
  const std::string lossy = R"(, "network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}})";
  const SweepPlan crossed = plan(lossy + R"(, "seed": 10, "seeds": {"network": 3}, "repeat": {"weights": 2,
                                     "network": 2}, "sweep": {"cross": {"/model/layers": [3, 4]}})");
  std::vector<Seeds> seeds;
  for (const PlannedRun& run : crossed.runs) {
    seeds.push_back(run.seeds);
    EXPECT_EQ(run.run.config.seeds, run.seeds);
    EXPECT_EQ(run.run.config.network.seed, run.seeds.network);
  }
  EXPECT_EQ(
      seeds,
      (std::vector<Seeds>{
          {10, 10, 3}, {10, 10, 3}, {10, 10, 4}, {10, 10, 4}, {11, 10, 3}, {11, 10, 3}, {11, 10, 4}, {11, 10, 4}}));
  EXPECT_EQ(crossed.runs[5].run.config.model.layers, 4);
  const SweepPlan alone =
      plan(lossy + R"(, "seeds": {"weights": 11, "data": 10, "network": 4}, "model": {"layers": 4})");
  EXPECT_EQ(crossed.runs[7].run.run_id, alone.runs[0].run.run_id);
  const SweepPlan batches = plan(R"(, "repeat": {"data": 3})");
  ASSERT_EQ(batches.runs.size(), 3U);
  EXPECT_EQ(batches.runs[2].seeds, (Seeds{1, 3, 1}));
  EXPECT_EQ(error_of(R"(, "repeat": {"seeds": 2, "network": 2})"),
            "s.json: /repeat: got seeds and repeats of single seeds, want one of the two");
  EXPECT_EQ(error_of(R"(, "seeds": {"data": 18446744073709551614}, "repeat": {"data": 3})"),
            "s.json: /repeat/data: got 3, want at most 2 from seed 18446744073709551614");
  EXPECT_THAT(error_of(R"(, "repeat": {"data": 100, "weights": 101})"), HasSubstr("/sweep: asks for more than 10000"));
}

TEST(SweepPlan, PointsThatMeanTheSameShareOneRunAndStayListed) {
  const SweepPlan same = plan(R"(, "sweep": {"cross": {
      "/network/loss": [{"model": "none"}, {"model": "bernoulli", "loss_rate": "5%"}],
      "/network/fill": ["zero", "count_rescale"]}})");
  ASSERT_EQ(same.runs.size(), 4U);
  // fill varies slowest: zero+none, zero+5 %, rescale+none, rescale+5 %.
  EXPECT_EQ(same.runs[0].run.run_id, same.runs[2].run.run_id);
  EXPECT_EQ(same.runs[2].same_as, 0U);
  EXPECT_EQ(same.runs[1].same_as, 1U);
  EXPECT_EQ(same.runs[3].same_as, 3U);
  EXPECT_NE(same.runs[1].run.run_id, same.runs[3].run.run_id);
  EXPECT_NE(same.runs[0].point, same.runs[2].point);
}

/// For each run, the number of the run that is trained in its place.
std::vector<std::size_t> trained(const SweepPlan& plan) {
  std::vector<std::size_t> numbers;
  for (const PlannedRun& run : plan.runs) numbers.push_back(run.same_as);
  return numbers;
}

TEST(SweepPlan, ALosslessPointIsTrainedOnceForAllSeedsOfTheNetwork) {
  const std::string repeats = R"(, "seed": 5, "repeat": {"weights": 2, "network": 3})";
  const std::string losses = R"(, "sweep": {"cross": {"/network/loss": [
      {"model": "none"}, {"model": "bernoulli", "loss_rate": "5%"}]}})";
  const SweepPlan repeated = plan(repeats + losses);
  EXPECT_EQ(trained(repeated), (std::vector<std::size_t>{0, 1, 0, 3, 0, 5, 6, 7, 6, 9, 6, 11}));
  EXPECT_EQ(repeated.same_runs(), 4U);
  for (const std::size_t listed : {0, 2, 4}) {
    EXPECT_EQ(repeated.runs[listed].seeds, (Seeds{5, 5, 5 + listed / 2}));
    EXPECT_EQ(repeated.runs[listed].run.config.seeds, (Seeds{5, 5, 5}));
    EXPECT_EQ(repeated.runs[listed].run.spec, repeated.runs[0].run.spec);
  }
  EXPECT_EQ(repeated.runs[0].run.run_id, plan(R"(, "seed": 5)").runs[0].run.run_id) << "ids are those of before";
  const SweepPlan pairs = plan(R"(, "repeat": {"seeds": 2})" + losses);
  EXPECT_EQ(trained(pairs), (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(pairs.runs[2].run.config.seeds, (Seeds{2, 2, 2})) << "a pair keeps its own seed of the network";
}

TEST(SweepPlan, RunsThatDrawFromTheNetworkSeedAreTrainedForEach) {
  const std::string repeats = R"(, "repeat": {"network": 2})";
  const std::vector<std::size_t> each = {0, 1};
  EXPECT_EQ(trained(plan(repeats)), (std::vector<std::size_t>{0, 0}));
  const auto network = [&](const std::string& section) { return plan(repeats + ", \"network\": {" + section + "}"); };
  const std::string no_rate = R"("loss": {"model": "bernoulli", "loss_rate": 0})";
  EXPECT_EQ(trained(network(no_rate)), (std::vector<std::size_t>{0, 0})) << "its packets are counted, and none is lost";
  EXPECT_EQ(trained(network(no_rate + R"(, "links": [{"sources": [1], "loss": {"model": "bernoulli",
      "loss_rate": 0.1}}])")),
            each);
  EXPECT_EQ(trained(network(no_rate + R"(, "recovery": {"hadamard": {}})")), each) << "signs of the transform";
  EXPECT_EQ(trained(network(R"("loss": {"model": "outage", "windows": [{"from_step": 1, "to_step": 2}]})")), each)
      << "a rate of 0 in the long run";
  EXPECT_EQ(trained(plan(repeats + R"(, "time": {"link": {"latency_microseconds": 1,
      "bandwidth_gbit_per_second": 1}})")),
            each)
      << "stragglers";
  EXPECT_EQ(trained(plan(repeats + R"(, "parallel": {"data": 2}, "network": {"compression": {"kind": "int4"}})")), each)
      << "starts of factors and signs of transforms";
  EXPECT_EQ(trained(plan(repeats + R"(, "parallel": {"pipeline": 4}, "failures": {"stages": {"rate": 0.1,
      "replacement": "mean"}})")),
            each)
      << "failures of stages";
  EXPECT_EQ(trained(plan(repeats + R"(, "training": {"precision": {"message": "float16"},
      "loss_scale": {"initial": 1024, "flag_loss_rate": 0.1}})")),
            each)
      << "overflows that ranks do not hear of";
}

TEST(SweepPlan, KeepsTheOrderOfTheSpec) {
  const std::string text = spec_text(R"(, "sweep": {
      "cross": {"/training/steps": [1], "/model/layers": [2]}, "zip": {"/network/fill": ["zero"]}})");
  const auto swept = [&](const std::vector<std::string>& overrides) {
    return plan_sweep(parse_spec(text, "s.json", overrides)).swept;
  };
  const std::vector<std::string> of_text = {"/training/steps", "/model/layers", "/network/fill"};
  EXPECT_EQ(swept({}), of_text);
  EXPECT_EQ(swept({"/sweep/cross/~1model~1layers=[3]"}), of_text);
  EXPECT_EQ(swept({R"(/sweep/cross={"/training/warmup_steps":[1],"/training/steps":[2]})"}),
            (std::vector<std::string>{"/training/steps", "/network/fill", "/training/warmup_steps"}))
      << "those of the text that are left come first";
  EXPECT_EQ(plan_sweep({comm::parse_json(text, "s"), "s"}).swept,
            (std::vector<std::string>{"/model/layers", "/network/fill", "/training/steps"}))
      << "values of JSON have no order but that of their keys";
}

TEST(SweepPlan, ANumberInAnOverriddenPointerIsTheNameOfAMember) {
  for (const std::string key : {"01", "99999999999999999999999", "0"}) {
    EXPECT_THAT(config_error_of([&] { (void)parse_spec(spec_text(""), "s.json", {{"/sweep/cross/" + key + "=[1]"}}); }),
                HasSubstr("/sweep/cross/" + key + ": got the key \"" + key + "\", want a JSON pointer"));
  }
}

/// "POINTER POINTS" of each warning.
std::vector<std::string> warnings(const std::string& rest) {
  std::vector<std::string> lines;
  for (const PlanWarning& one : plan(rest).warnings) {
    lines.push_back(one.warning.pointer + " " + std::to_string(one.points));
  }
  return lines;
}

TEST(SweepPlan, NetworksThatLoseNothingAreWarnedOf) {
  const std::string loss = R"({"model": "bernoulli", "loss_rate": 0.1})";
  using Lines = std::vector<std::string>;
  EXPECT_EQ(warnings(R"(, "network": {"loss": )" + loss + "}"), Lines());
  EXPECT_EQ(warnings(""), Lines());
  // One rank sends nothing.
  const std::string alone = R"(, "parallel": {"tensor": 1})";
  EXPECT_EQ(warnings(R"(, "network": {"loss": )" + loss + "}" + alone), Lines{"/network 1"});
  EXPECT_EQ(warnings(R"(, "network": {"gather": {"loss": )" + loss + "}}" + alone), Lines{"/network 1"});
  EXPECT_EQ(warnings(R"(, "network": {"links": [{"loss": )" + loss + "}]}" + alone), Lines{"/network 1"});
  EXPECT_EQ(warnings(R"(, "network": {"loss": {"model": "none"}, "path": "ring"})" + alone), Lines());
  EXPECT_EQ(warnings(R"(, "network": {"classes": {"tp_forward": {"loss": {"model": "none"}}}})" + alone), Lines());
  // Networks with all other settings but no loss.
  EXPECT_EQ(warnings(R"(, "network": {"path": "ring", "fill": "stale"})"), Lines{"/network 1"});
  EXPECT_EQ(warnings(R"(, "network": {"path": "ring", "loss": {"model": "none"}})"), Lines());
  EXPECT_EQ(warnings(R"(, "network": {"path": "ring", "links": []})"), Lines());
  EXPECT_EQ(warnings(R"(, "network": {"path": "ring", "classes": {"tp_forward": {"loss": )" + loss + "}}}"), Lines());
  EXPECT_EQ(warnings(R"(, "network": {"path": "ring"}, "time": {"link": {"latency_microseconds": 1,
      "bandwidth_gbit_per_second": 1}})"),
            Lines())
      << "it takes time";
  // These specs are valid as points of a sweep, and equal runs are shown as such.
  const std::string sweep = R"(, "network": {"classes": {"tp_forward": {"fill": "stale"}}}, "sweep": {"cross": {
      "/network/classes/tp_forward/loss": [{"model": "bernoulli", "loss_rate": 0.1},
                                           {"model": "bernoulli", "loss_rate": 0.2}], "/parallel/tensor": [1, 2]}})";
  EXPECT_EQ(warnings(sweep), Lines{"/network/classes/tp_forward 2"});
  const SweepPlan swept = plan(sweep);
  EXPECT_EQ(swept.points, 4U);
  EXPECT_EQ(swept.same_runs(), 1U);
  EXPECT_EQ(swept.runs[2].same_as, 0U);
  EXPECT_EQ(swept.runs[0].run.warnings.size(), 1U);
  EXPECT_TRUE(swept.runs[1].run.warnings.empty());
}

TEST(SweepPlan, TwoWordsForOneValueAreOnePoint) {
  const SweepPlan swept = plan(R"(, "sweep": {"cross": {"/training/precision": ["bf16", "bfloat16", "float32"]}})");
  EXPECT_EQ(swept.runs[0].point, swept.runs[1].point);
  EXPECT_EQ(swept.runs[0].point["/training/precision"], "bfloat16");
  EXPECT_EQ(swept.runs[1].same_as, 0U);
  EXPECT_EQ(swept.same_runs(), 1U);
}

TEST(SweepPlan, ASpecOfOneRunThatNamesAnIdleClassIsRefused) {
  const std::string forward = R"(, "network": {"classes": {"tp_forward": {"loss": {"model": "bernoulli",
      "loss_rate": 0.1}}}}, "parallel": {"tensor": 1})";
  EXPECT_EQ(error_of(forward),
            "s.json: /network/classes/tp_forward: no packet is sent, so none is lost; want /parallel/tensor 2 or more");
  EXPECT_EQ(error_of(forward + R"(, "repeat": {"seeds": 2})"), error_of(forward));
  EXPECT_EQ(
      error_of(R"(, "network": {"classes": {"tp_backward": {"fill": "zero"}}})"),
      "s.json: /network/classes/tp_backward: no packet is lost: neither this class nor /network has a loss; want a "
      "loss, or {\"model\": \"none\"} where none is meant");
  // Another class has traffic.
  EXPECT_EQ(
      error_of(R"(, "network": {"classes": {"dp_gradient": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}}})"),
      "s.json: /network/classes/dp_gradient: no packet of this class is sent, so none is lost; the classes with "
      "traffic are tp_forward, tp_backward; want /parallel/data 2 or more without /outer, or /parallel/sequence 2 or "
      "more");
}

// A class is idle if its own group has one rank, whatever the other groups have.
TEST(SweepPlan, AnIdleClassNamesTheMemberOfItsGroup) {
  const auto error = [](const std::string& name, const std::string& parallel) {
    return error_of(R"(, "network": {"classes": {")" + name +
                    R"(": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}}}, "parallel": )" + parallel);
  };
  for (const auto& [name, wanted] : std::map<std::string, std::string>{
           {"tp_backward", "want /parallel/tensor 2 or more"},
           {"dp_gradient", "want /parallel/data 2 or more"},
           {"parameter_gather", "want /parallel/data or /parallel/sequence 2 or more with /parallel/zero 1, 2 or 3"},
           {"outer", "want /parallel/data 2 or more with /outer"},
           {"sequence_forward", "want /parallel/sequence 2 or more"},
           {"sequence_backward", "want /parallel/sequence 2 or more, or /parallel/tensor_sequence true"},
           {"pp_activation", "want /parallel/pipeline 2 or more"},
           {"pp_gradient", "want /parallel/pipeline 2 or more"},
           {"embedding_gradient", "want /parallel/pipeline 2 or more"}}) {
    EXPECT_THAT(error(name, R"({"tensor": 1})"), HasSubstr("no packet is sent, so none is lost; " + wanted));
    if (name != "tp_backward") {
      EXPECT_THAT(error(name, R"({"tensor": 2})"), HasSubstr("traffic are tp_forward, tp_backward; " + wanted));
    } else {
      EXPECT_THAT(error(name, R"({"tensor": 1, "data": 2})"), HasSubstr("traffic are dp_gradient; " + wanted));
    }
  }
  const SweepPlan alone =
      plan(R"(, "network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}, "parallel": {"tensor": 1})");
  ASSERT_EQ(alone.warnings.size(), 1U);
  EXPECT_EQ(alone.warnings[0].warning.message,
            "no packet is sent, so none is lost: with /parallel/data, /parallel/tensor, /parallel/sequence and "
            "/parallel/pipeline 1 no traffic class has traffic; want 2 or more in one of them");
}

TEST(SweepPlan, AMemberOfASweptObjectCanBeSweptToo) {
  const SweepPlan nested = plan(R"(, "sweep": {"cross": {
      "/network/loss": [{"model": "bernoulli", "loss_rate": 0.9}], "/network/loss/loss_rate": [0.1, 0.2]}})");
  ASSERT_EQ(nested.runs.size(), 2U);
  EXPECT_EQ(nested.runs[0].run.spec["network"]["classes"]["tp_forward"]["reduce"]["loss"]["loss_rate"], 0.1);
  EXPECT_EQ(nested.runs[1].run.spec["network"]["classes"]["tp_forward"]["reduce"]["loss"]["loss_rate"], 0.2);
}

TEST(SweepPlan, AskingTwiceGivesTheSamePlan) {
  const std::string rest = R"(, "repeat": {"seeds": 3}, "sweep": {"cross": {"/model/layers": [1, 2]}})";
  const SweepPlan first = plan(rest);
  const SweepPlan second = plan(rest);
  ASSERT_EQ(order(first), order(second));
  for (std::size_t i = 0; i < first.runs.size(); ++i) EXPECT_EQ(first.runs[i].run.run_id, second.runs[i].run.run_id);
}

TEST(SweepPlan, MemoryIsSweptWhereAValueChangesResults) {
  const SweepPlan chunks = plan(R"(, "sweep": {"cross": {"/memory": ["basic", {"attention_chunk": 64}]}})");
  ASSERT_EQ(chunks.runs.size(), 2U);
  EXPECT_EQ(chunks.runs[0].run.config.model.attention.chunk_tokens, 0);
  EXPECT_EQ(chunks.runs[1].run.config.model.attention.chunk_tokens, 64);
  EXPECT_NE(chunks.runs[0].run.run_id, chunks.runs[1].run.run_id);
  EXPECT_EQ(error_of(R"(, "sweep": {"cross": {"/memory": ["basic", "extreme"]}})"),
            "s.json: /sweep/cross/~1memory: cannot be swept: it changes no result");
}

TEST(SweepPlan, SweepsWithoutMeaningAreRefused) {
  EXPECT_EQ(error_of(R"(, "sweep": {"zip": {"/model/layers": [1, 2, 3], "/training/steps": [1, 2]}})"),
            "s.json: /sweep/zip/~1training~1steps: got 2 values, want 3 as /model/layers has");
  EXPECT_EQ(error_of(R"(, "sweep": {"zip": {"/model/layers": [1]}, "cross": {"/model/layers": [1]}})"),
            "s.json: /sweep/cross/~1model~1layers: is in both zip and cross; want it in one of them");
  for (const char* pointer : {"/name", "/description", "/record", "/record/links", "/backend/timeout_seconds",
                              "/backend/rendezvous/kind", "/sweep/cross", "/repeat/seeds", "/sweep"}) {
    EXPECT_THAT(error_of(R"(, "sweep": {"cross": {")" + std::string(pointer) + R"(": [1]}})"),
                HasSubstr("cannot be swept: it changes no result"))
        << pointer;
  }
  EXPECT_THAT(error_of(R"(, "sweep": {"cross": {"/network/los": [1]}})"),
              HasSubstr("s.json: /sweep/cross/~1network~1los: no member \"los\" in /network; did you mean \"loss\"?"));
  EXPECT_THAT(error_of(R"(, "sweep": {"cross": {"network": [1]}})"),
              HasSubstr("s.json: /sweep/cross/network: got the key \"network\", want a JSON pointer such as"));
  EXPECT_EQ(error_of(R"(, "sweep": {"cross": {"/model/layers": []}})"),
            "s.json: /sweep/cross/~1model~1layers: got [], want a list that is not empty, {\"linspace\": [first, last, "
            "count]} or {\"logspace\": [first, last, count]}");
  EXPECT_EQ(error_of(R"(, "seed": 18446744073709551615, "repeat": {"seeds": 2})"),
            "s.json: /repeat/seeds: got 2, want at most 1 from seed 18446744073709551615");
}

/// The values that a range gives the learning rate, or one of steps.
json range(const std::string& text, const std::string& pointer = "/training/learning_rate") {
  json values = json::array();
  for (const PlannedRun& run : plan(R"(, "sweep": {"cross": {")" + pointer + R"(": )" + text + "}}").runs) {
    values.push_back(run.point[pointer]);
  }
  return values;
}

TEST(SweepPlan, RangesAreListsOfValuesBetweenTheirEnds) {
  EXPECT_EQ(range(R"({"linspace": [0.1, 0.4, 4]})").dump(), "[0.1,0.2,0.3,0.4]");
  EXPECT_EQ(range(R"({"linspace": [1, 2, 4]})").dump(), "[1,1.33333,1.66667,2]") << "six digits";
  EXPECT_EQ(range(R"({"logspace": [0.001, 0.1, 5]})").dump(), "[0.001,0.00316228,0.01,0.0316228,0.1]");
  EXPECT_EQ(range(R"({"logspace": [0.123456789, 0.1, 2]})").dump(), "[0.123456789,0.1]") << "ends are exact";
  EXPECT_EQ(range(R"({"linspace": [0.1, 0.123456789, 2]})").dump(), "[0.1,0.123456789]");
  EXPECT_EQ(range(R"({"linspace": [9, 3, 3]})").dump(), "[9,6,3]");
  EXPECT_EQ(range(R"({"linspace": [100, 20000002, 3]})", "/training/steps").dump(), "[100,10000051,20000002]");
  EXPECT_EQ(range(R"({"logspace": [10, 1000, 3]})", "/training/steps").dump(), "[10,100,1000]");
  EXPECT_EQ(range(R"({"logspace": [1048576, 16777216, 5]})", "/training/steps").dump(),
            "[1048576,2097152,4194304,8388608,16777216]");
  EXPECT_EQ(range(R"({"linspace": [1000001, 1000010, 4]})", "/training/steps").dump(),
            "[1000001,1000004,1000007,1000010]");
  // A value of a range is the run of that value.
  EXPECT_EQ(
      plan(R"(, "sweep": {"cross": {"/training/learning_rate": {"logspace": [0.001, 0.1, 5]}}})").runs[1].run.run_id,
      plan(R"(, "training": {"learning_rate": 0.00316228})").runs[0].run.run_id);
  EXPECT_EQ(order(plan(R"(, "sweep": {"zip": {"/training/steps": {"linspace": [1, 3, 2]}, "/model/layers": [5, 6]}})")),
            (std::vector<std::string>{R"({"/model/layers":5,"/training/steps":1} 1)",
                                      R"({"/model/layers":6,"/training/steps":3} 1)"}));
}

TEST(SweepPlan, RangesWithoutMeaningAreRefused) {
  const auto error = [](const std::string& text) {
    return error_of(R"(, "sweep": {"cross": {"/training/learning_rate": )" + text + "}}");
  };
  const std::string place = "s.json: /sweep/cross/~1training~1learning_rate";
  EXPECT_EQ(error(R"({"linspace": [1, 2, 3, 4]})"), place + "/linspace: got [1,2,3,4], want first, last and count");
  for (const char* count : {"1", "2.5", "10001"}) {
    EXPECT_THAT(error(R"({"linspace": [1, 2, )" + std::string(count) + "]}"),
                HasSubstr("want an integer in [2, 10000] as count"));
  }
  for (const char* narrow : {"[1.0000005, 1.0000035, 4]", "[1, 1, 3]"}) {
    EXPECT_THAT(error(R"({"linspace": )" + std::string(narrow) + "}"), HasSubstr("steps that six significant digits"));
  }
  EXPECT_EQ(error(R"({"logspace": [-3, 2, 4]})"),
            place +
                "/logspace: got [-3,2,4], want first and last above 0: they are the values themselves, not their "
                "exponents");
  for (const char* text : {R"({"linspace": [1, 2]})", R"({"linspace": ["1", "2", 3]})", R"({"space": [1, 2, 3]})",
                           R"({"linspace": [1, 2, 3], "logspace": [1, 2, 3]})", "3"}) {
    EXPECT_THAT(error(text), HasSubstr(place + ": got ")) << text;
  }
}

TEST(SweepPlan, LabelsNameValuesAndAreNoPartOfTheId) {
  const SweepPlan named = plan(R"(, "sweep": {
      "zip": {"/training/steps": [{"label": "short", "value": 3}, 9], "/model/layers": [{"label": "flat", "value": 1}, 2]},
      "cross": {"/training/gradient_clip": [{"label": "no clipping", "value": 0}, 1]}})");
  const SweepPlan bare = plan(R"(, "sweep": {"zip": {"/training/steps": [3, 9], "/model/layers": [1, 2]},
      "cross": {"/training/gradient_clip": [0, 1]}})");
  EXPECT_EQ(order(named), order(bare));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(named.runs[i].run.run_id, bare.runs[i].run.run_id);
  EXPECT_EQ(comm::canonical_json(named.runs[0].run.labels),
            R"([{"label":"flat, short","pointers":["/model/layers","/training/steps"]},)"
            R"({"label":"no clipping","pointers":["/training/gradient_clip"]}])");
  EXPECT_EQ(comm::canonical_json(named.runs[2].run.labels),
            R"([{"label":"no clipping","pointers":["/training/gradient_clip"]}])");
  EXPECT_EQ(named.runs[3].run.labels, json::array());
  const auto error = [](const std::string& list) {
    return error_of(R"(, "sweep": {"cross": {"/training/steps": )" + list + "}}");
  };
  const std::string place = "s.json: /sweep/cross/~1training~1steps/1";
  EXPECT_EQ(error(R"([1, {"label": "x"}])"), place + R"(: got {"label":"x"}, want {"label": TEXT, "value": VALUE})");
  EXPECT_EQ(error(R"([1, {"label": "x", "value": 2, "more": 3}])"),
            place + R"(: got {"label":"x","more":3,"value":2}, want {"label": TEXT, "value": VALUE})");
  EXPECT_EQ(error(R"([1, {"label": "", "value": 2}])"), place + R"(/label: got "", want text that is not empty)");
  EXPECT_EQ(error(R"([{"label": "x", "value": 1}, {"label": "x", "value": 2}])"),
            place + R"(/label: got "x", which another value of this list has)");
  const SweepPlan zipped =
      plan(R"(, "sweep": {"zip": {"/training/steps": [{"label": "x", "value": 3}, {"label": "x", "value": 4}]}})");
  EXPECT_EQ(zipped.runs[0].run.labels, zipped.runs[1].run.labels) << "which are told apart by their other values";
}

TEST(SweepPlan, BestOverAddsTokensToSelectBy) {
  const std::string sweep = R"("cross": {"/training/learning_rate": [0.1, 0.2], "/training/steps": [3, 9]})";
  const SweepPlan best = plan(R"(, "sweep": {"best_over": ["/training/learning_rate"], )" + sweep + "}");
  const SweepPlan plain = plan(R"(, "sweep": {)" + sweep + "}");
  EXPECT_EQ(best.best_over, std::vector<std::string>{"/training/learning_rate"});
  EXPECT_TRUE(plain.best_over.empty());
  EXPECT_EQ(order(best), order(plain));
  EXPECT_EQ(best.runs[0].run.config.validation.selection_tokens, 65536U);
  EXPECT_EQ(plain.runs[0].run.config.validation.selection_tokens, 0U);
  EXPECT_FALSE(plain.runs[0].run.spec["validation"].contains("selection_tokens"));
  EXPECT_NE(best.runs[0].run.run_id, plain.runs[0].run.run_id);
  // The selection uses as many tokens as validation, also at this point, or as many as the spec asks for.
  const std::string over = R"(, "sweep": {"best_over": ["/training/learning_rate"], "zip": {
      "/training/learning_rate": [0.1]}, "cross": {"/validation/tokens": [77]}})";
  EXPECT_EQ(plan(over).runs[0].run.config.validation.selection_tokens, 77U);
  EXPECT_EQ(plan(over + R"(, "validation": {"selection_tokens": 5})").runs[0].run.config.validation.selection_tokens,
            5U);
  EXPECT_EQ(best.runs[0].run.run_id,
            plan(R"(, "validation": {"selection_tokens": 65536}, "training": {"learning_rate": 0.1, "steps": 3})")
                .runs[0]
                .run.run_id);
  // The resolved spec says it, and resolves to itself.
  EXPECT_EQ(resolve(best.runs[0].run.spec, "s").run_id, best.runs[0].run.run_id);
}

TEST(SweepPlan, BestOverIsOfSweptPointers) {
  const auto error = [](const std::string& over, const std::string& rest) {
    return error_of(R"(, "sweep": {"best_over": )" + over + R"(, )" + rest + "}");
  };
  EXPECT_EQ(
      error(R"(["/training/learning_rat"])", R"("cross": {"/training/learning_rate": [1]})"),
      R"(s.json: /sweep/best_over/0: got "/training/learning_rat", want a pointer of /sweep/cross or /sweep/zip; )"
      R"(did you mean "/training/learning_rate"? known pointers: /training/learning_rate)");
  EXPECT_EQ(error(R"(["/training/steps"])", R"("zip": {"/training/steps": [1], "/model/layers": [1]})"),
            R"(s.json: /sweep/best_over/0: got "/training/steps", want all pointers of its zip, or none: their values )"
            R"(are taken together)");
  EXPECT_EQ(error(R"(["/training/steps", "/training/steps"])", R"("cross": {"/training/steps": [1]})"),
            R"(s.json: /sweep/best_over/1: got "/training/steps", want each pointer once)");
  EXPECT_EQ(error("[]", R"("cross": {"/training/steps": [1]})"),
            "s.json: /sweep/best_over: got [], want a list that is not empty");
  EXPECT_EQ(error_of(R"(, "validation": {"selection_tokens": 0})"),
            "s.json: /validation/selection_tokens: got 0, want an integer in [1, 1000000000000]");
}

TEST(SweepPlan, TooManyRunsAreRefusedBeforeAnyIsPlanned) {
  std::string list = "[1";
  for (int i = 2; i <= 1000; ++i) list += "," + std::to_string(i);
  list += "]";
  EXPECT_EQ(error_of(R"(, "sweep": {"cross": {"/training/steps": )" + list + R"(, "/training/gradient_clip": )" + list +
                     R"(, "/training/accumulation": )" + list + R"(, "/validation/tokens": )" + list + "}}"),
            "s.json: /sweep: asks for more than 10000 runs");
}

TEST(SweepPlan, AnErrorOfSomePointsNamesTheFirstOfThem) {
  EXPECT_EQ(error_of(R"(, "sweep": {"cross": {"/parallel/tensor": [2, 3, 8]}})"),
            "s.json: /parallel/tensor: got 8, want at most 4, the model's heads (at point {\"/parallel/tensor\":8})");
  EXPECT_EQ(error_of(R"(, "sweep": {"cross": {"/training/steps": [1, "x"]}})"),
            "s.json: /training/steps: got \"x\", want an integer in [1, 1000000000000] (at point "
            "{\"/training/steps\":\"x\"})");
  EXPECT_EQ(error_of(R"(, "model": {"heads": 3}, "sweep": {"cross": {"/training/steps": [1, 2]}})"),
            "s.json: /model/heads: got 3, want a divisor of the width 128")
      << "what all points share is said once";
}

}  // namespace
}  // namespace droptest::experiments::sweep_plan_test
