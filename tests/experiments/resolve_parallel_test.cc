// SPDX-License-Identifier: Apache-2.0
// The resolved layout of a run, and its effect on the network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "experiments/spec/resolve.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::resolve_parallel_test {
namespace {

using comm::canonical_json;

TEST(Resolve, ALayoutIsWrittenOutWhereThereAreReplicas) {
  // Members that change nothing are left out, so ids are those of specs without them.
  const std::vector<std::string> nothing = {"/parallel/pipeline=1",
                                            "/parallel/bucket_bytes=7",
                                            "/parallel/data=1",
                                            R"(/parallel/order=["tensor", "sequence", "data", "pipeline"])",
                                            "/training/gradient_norm=own",
                                            "/training/global_batch_sequences=8"};
  EXPECT_EQ(id_with(nothing), id_with({}));
  EXPECT_EQ(canonical_json(resolved(kTwoRanks, nothing).spec["parallel"]), R"({"tensor":2})");

  const ResolvedRun run =
      resolved(kTwoRanks, {"/parallel/data=4", "/parallel/zero=2", "/parallel/reduce=after_each",
                           R"(/parallel/order=["tensor", "sequence", "data", "pipeline"])",
                           "/training/global_batch_sequences=96", "/parallel/first_bucket_bytes=5"});
  EXPECT_EQ(canonical_json(run.spec["parallel"]),
            R"({"bucket_bytes":26214400,"data":4,"first_bucket_bytes":5,)"
            R"("order":["tensor","sequence","data","pipeline"],"reduce":"after_each","tensor":2,"zero":2})");
  EXPECT_EQ(run.spec["training"]["accumulation"], 3);
  EXPECT_EQ(run.config.parallel.world_size(), 8);
  EXPECT_EQ(run.config.parallel.order, comm::kMegatronOrder);
  EXPECT_EQ(run.config.sharding.zero, 2);
  EXPECT_EQ(run.config.sharding.bucket_bytes, 26214400U);
  EXPECT_EQ(run.config.sharding.first_bucket_bytes, 5U);
  EXPECT_EQ(run.config.sharding.micro_batches, 3);
  EXPECT_TRUE(run.config.sharding.reduces_each());
  const ResolvedRun sgd = resolved(kTwoRanks, {"/training/optimizer=sgd", "/training/momentum=0.5"});
  EXPECT_EQ(sgd.config.training.optimizer.rule, models::OptimizerConfig::Rule::kSgd);
  EXPECT_EQ(sgd.config.training.optimizer.momentum, 0.5);
  EXPECT_EQ(resolved(kTwoRanks, {"/training/optimizer=sgd"}).spec["training"]["momentum"], 0.9);
  EXPECT_EQ(resolved(kTwoRanks, {"/parallel/data=2", "/training/gradient_norm=own"}).config.training.gradient_norm,
            models::UpdateRule::Norm::kOwn);
}

TEST(Resolve, MembersWithoutEffectOnReplicasChangeNoId) {
  const auto id = [](std::vector<std::string> with, const std::vector<std::string>& more) {
    with.insert(with.end(), more.begin(), more.end());
    return id_with(with);
  };
  const std::vector<std::string> two = {"/parallel/data=2", "/parallel/zero=2"};
  EXPECT_EQ(id(two, {"/parallel/reduce=after_each"}), id(two, {})) << "one micro-batch";
  EXPECT_NE(id(two, {"/parallel/reduce=after_each", "/training/accumulation=2"}),
            id(two, {"/training/accumulation=2"}));
  EXPECT_EQ(id(two, {"/parallel/gather_bucket_bytes=8"}), id(two, {}));
  EXPECT_NE(id(two, {"/parallel/bucket_bytes=8"}), id(two, {}));
  const std::vector<std::string> three = {"/parallel/data=2", "/parallel/zero=3"};
  EXPECT_NE(id(three, {"/parallel/gather_bucket_bytes=8"}), id(three, {}));
  EXPECT_EQ(id(three, {"/parallel/bucket_bytes=8", "/parallel/first_bucket_bytes=8"}), id(three, {}));
  const std::string order = R"(/parallel/order=["tensor", "sequence", "data", "pipeline"])";
  const std::string other_order = R"(/parallel/order=["data", "tensor", "sequence", "pipeline"])";
  EXPECT_NE(id(two, {order}), id(two, {other_order}));
  EXPECT_EQ(id({"/parallel/data=2", "/parallel/tensor=1"}, {order}),
            id({"/parallel/data=2", "/parallel/tensor=1"}, {other_order}));
}

// The gradients of sharded state are scattered: their reductions have no gather half, but on paths with groups.
TEST(Resolve, ScatteredGradientsHaveNoGatherHalf) {
  const std::vector<std::string> lossy = {"/parallel/data=4",
                                          "/network/loss={\"model\": \"bernoulli\", \"loss_rate\": 0.1}"};
  const auto gather = [&](std::vector<std::string> with) {
    with.insert(with.end(), lossy.begin(), lossy.end());
    return canonical_json(resolved(kTwoRanks, with).spec["network"]["classes"]["dp_gradient"]["gather"]["loss"]);
  };
  const std::string none = R"({"model":"none"})";
  EXPECT_NE(gather({}), none);
  EXPECT_EQ(gather({"/parallel/zero=1"}), none);
  EXPECT_NE(gather({"/parallel/zero=1", R"(/network/path="halving_doubling")", "/parallel/data=3"}), none);
  EXPECT_NE(
      gather({"/parallel/zero=1", R"(/network/classes={"dp_gradient": {"path": "hierarchical", "group_ranks": 2}})"}),
      none);
  EXPECT_THAT(
      config_error_of([] {
        (void)resolved(kTwoRanks, {"/parallel/data=2", "/parallel/zero=1",
                                   R"(/network/classes={"dp_gradient": {"gather": {"fill": "stale"}}})"});
      }),
      testing::HasSubstr("/network/classes/dp_gradient/gather: got a gather half, which a reduce-scatter on path "
                         "direct does not have; want it absent"));
}

// A fill for both halves acts where it has a meaning. Where it acts in no half with losses, users are told.
TEST(Resolve, AFillThatZeroReplacesIsSaid) {
  const auto warnings = [](const std::vector<std::string>& with) {
    std::string all;
    for (const Warning& warning : resolved(kTwoRanks, with).warnings) {
      all += warning.pointer + ": " + warning.message.substr(0, warning.message.find(", so ")) + "\n";
    }
    return all;
  };
  const std::string meaningless = ", which has no meaning for the losses of ";
  const std::string stages = "/parallel/pipeline=2";
  EXPECT_EQ(warnings({stages, "/network/fill=own"}),
            "/network/fill: got \"own\"" + meaningless + "pp_activation, pp_gradient\n");
  EXPECT_EQ(warnings({stages, "/network/fill=own", R"(/network/classes={"pp_activation": {"fill": "stale"}})"}),
            "/network/fill: got \"own\"" + meaningless + "pp_gradient\n");
  EXPECT_EQ(warnings({stages, "/network/fill=stale"}), "");
  EXPECT_EQ(warnings({"/network/fill=own"}), "") << "it acts in the gather half";
  EXPECT_EQ(warnings({"/network/fill=own", "/network/gather={\"loss\": {\"model\": \"none\"}}"}),
            "/network/fill: got \"own\"" + meaningless + "tp_forward, tp_backward\n");
  EXPECT_EQ(warnings({"/network/fill=own", "/network/gather={\"loss\": {\"model\": \"none\"}}",
                      "/network/reduce={\"fill\": \"stale\"}"}),
            "");
  EXPECT_EQ(warnings({"/network/fill=own", "/network/path=contribution",
                      R"(/network/classes={"tp_backward": {"fill": "count_rescale"}})"}),
            "/network/fill: got \"own\"" + meaningless + "tp_forward\n");
  EXPECT_EQ(warnings({"/network/loss={\"model\": \"none\"}", "/network/fill=own", "/network/path=contribution"}), "");
  // The fill of a class has a meaning in its gather half, but only its reduce half loses.
  EXPECT_EQ(
      warnings({"/parallel/data=2", R"(/network/classes={"dp_gradient": {"fill": "own", "path": "contribution"}})"}),
      "/network/classes/dp_gradient/fill: got \"own\"" + meaningless + "dp_gradient\n");
  // Parameters do not take the fill of all classes.
  EXPECT_EQ(warnings({"/parallel/data=2", "/parallel/zero=1", "/network/fill=count_rescale"}), "");
}

TEST(Resolve, TheFillOfAClassHasAMeaningInOneOfItsHalves) {
  const auto error = [](const std::string& of_class, const std::string& fill) {
    return config_error_of([&] {
      (void)resolved(kTwoRanks,
                     {"/parallel/pipeline=2", "/network/classes={\"" + of_class + "\": {\"fill\": \"" + fill + "\"}}"});
    });
  };
  const auto refused = [](const std::string& of_class, const std::string& fill, const std::string& known) {
    return testing::HasSubstr("/network/classes/" + of_class + "/fill: got \"" + fill +
                              "\", which has no meaning in this class, want one of " + known);
  };
  const std::string between = R"("zero", "stale", "skip")";
  EXPECT_THAT(error("pp_activation", "own"), refused("pp_activation", "own", between));
  EXPECT_THAT(error("pp_gradient", "count_rescale"), refused("pp_gradient", "count_rescale", between));
  EXPECT_THAT(error("tp_forward", "absent"),
              refused("tp_forward", "absent",
                      R"("zero", "count_rescale", "inverse_probability", "stale", "own", "own_scaled")"));
  for (const char* fill : {"count_rescale", "own", "stale"})
    (void)resolved(kTwoRanks, {"/network/classes={\"tp_forward\": {\"fill\": \"" + std::string(fill) + "\"}}"});
}

TEST(Resolve, SkipIsAFillBetweenStagesAlone) {
  const std::string skip = R"(/network/fill="skip")";
  const auto fills = [&](const std::vector<std::string>& with) {
    std::string all;
    const nlohmann::json classes = resolved(kTwoRanks, with).spec["network"]["classes"];
    for (const auto& [name, section] : classes.items()) {
      all += name + " " + section["gather"]["fill"].get<std::string>() + " ";
    }
    return all;
  };
  EXPECT_EQ(fills({skip, "/parallel/pipeline=2"}),
            "embedding_gradient own pp_activation skip pp_gradient skip tp_backward zero tp_forward zero ");
  EXPECT_EQ(id_with({skip}), id_with({}));
  ASSERT_EQ(resolved(kTwoRanks, {skip}).warnings.size(), 1U);
  EXPECT_EQ(resolved(kTwoRanks, {skip}).warnings[0].pointer, "/network/fill");
  const std::vector<Warning> of_two = resolved(kTwoRanks, {skip, "/parallel/pipeline=2"}).warnings;
  ASSERT_EQ(of_two.size(), 1U);
  EXPECT_THAT(of_two[0].message, testing::HasSubstr("the losses of tp_forward, tp_backward, so \"zero\" takes"));
  const auto error = [](const std::string& section) {
    return config_error_of([&] { (void)resolved(kTwoRanks, {"/parallel/pipeline=2", "/network/classes=" + section}); });
  };
  EXPECT_THAT(error(R"({"tp_forward": {"gather": {"fill": "skip"}}})"),
              testing::HasSubstr(R"(got "skip", which has no meaning in this half)"));
  EXPECT_THAT(
      error(R"({"pp_gradient": {"gather": {"fill": "own"}}})"),
      testing::HasSubstr(R"(got "own", which has no meaning in this half, want one of "zero", "stale", "skip")"));
  // A stage's messages have no deadline: without loss a fill fills nothing.
  EXPECT_EQ(fills({skip, "/parallel/pipeline=2", "/parallel/tensor=1", R"(/network/loss={"model": "none"})",
                   R"(/time={"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 100},
                             "compute_milliseconds": 1, "deadline_microseconds": 100})"}),
            "embedding_gradient own pp_activation zero pp_gradient zero ");
  EXPECT_THAT(config_error_of([] {
                (void)resolved(kTwoRanks, {"/parallel/pipeline=2", "/network/payload_bytes=8", "/model/preset=small",
                                           "/model/heads=12", "/training/batch_sequences=8"});
              }),
              testing::HasSubstr("packets in a message between stages, want at most 131071 packets"));
}

TEST(Resolve, FailuresOfStagesWantAPipelineOfOneStageEach) {
  const std::string some = R"(/failures={"stages": {"rate": 0.01, "replacement": "weighted"}})";
  const std::string none = R"(/failures={"stages": {"rate": 0, "replacement": "mean"}})";
  const std::vector<std::string> four = {"/parallel/pipeline=4", "/training/accumulation=4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), four.begin(), four.end());
    return more;
  };
  const ResolvedRun run = resolved(kTwoRanks, with({some}));
  ASSERT_TRUE(run.config.failures);
  EXPECT_EQ(run.config.failures->stage_rate, 0.01);
  EXPECT_EQ(run.config.failures->replacement, FailureConfig::Replacement::kWeighted);
  EXPECT_EQ(run.run_id, resolve(run.spec, "resolved").run_id);
  EXPECT_NE(run.run_id, id_with(four));
  EXPECT_EQ(id_with(with({none})), id_with(four));
  EXPECT_EQ(id_with({none}), id_with({})) << "without a pipeline, too";
  const auto error = [](const std::vector<std::string>& overrides) {
    return config_error_of([&] { (void)resolved(kTwoRanks, overrides); });
  };
  EXPECT_THAT(error({some}),
              testing::HasSubstr("/failures/stages: got failures of stages with /parallel/pipeline 1, want "
                                 "at least 3"));
  EXPECT_THAT(error(with({some, "/parallel/data=2"})), testing::HasSubstr("with /parallel/data 2, want 1"));
  EXPECT_THAT(error({some, "/parallel/pipeline=3", "/training/accumulation=1", "/parallel/layers_per_stage=[1, 1, 2]",
                     R"(/parallel/schedule={"rows": ["1F0,1B0", "0F0,0B0", "2F0,2B0"]})"}),
              testing::HasSubstr("with another placement than stage s on rank s of the pipeline, want that one"));
}

TEST(Resolve, AbsencesOfReplicas) {
  const auto absent = [](const std::string& list) { return R"(/failures={"replicas": )" + list + "}"; };
  const auto with = [](const std::string& failures) {
    return std::vector<std::string>{"/parallel/data=3", "/training/steps=20", "/training/warmup_steps=2", failures};
  };
  const ResolvedRun run =
      resolved(kTwoRanks, with(absent(R"([{"data_rank": 2, "from": 5, "until": 9}, {"data_rank": 1, "from": 5}])")));
  const auto& replicas = run.config.failures.value().replicas;
  ASSERT_EQ(replicas.size(), 2U);
  EXPECT_EQ(replicas[0].data_rank, 1);
  EXPECT_FALSE(replicas[0].until);
  EXPECT_EQ(replicas[1].data_rank, 2);
  EXPECT_EQ(replicas[1].from, 5U);
  EXPECT_EQ(replicas[1].until, 9U);
  EXPECT_EQ(run.config.failures->stage_rate, 0);
  EXPECT_EQ(run.run_id, resolve(run.spec, "resolved").run_id);
  EXPECT_EQ(run.run_id, id_with(with(absent(R"([{"data_rank": 1, "from": 5, "until": 21},
                                               {"data_rank": 2, "from": 5, "until": 9}])"))))
      << "order, and a return after the end";
  EXPECT_NE(run.run_id, id_with(with(absent(R"([{"data_rank": 1, "from": 5}])"))));
  const auto error = [&](const std::string& list, std::vector<std::string> more = {}) {
    std::vector<std::string> overrides = with(absent(list));
    overrides.insert(overrides.end(), more.begin(), more.end());
    return config_error_of([&] { (void)resolved(kTwoRanks, overrides); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(error(R"([{"data_rank": 3, "from": 1}])"),
              HasSubstr("/failures/replicas/0/data_rank: got 3 with /parallel/data 3, want 1 to 2"));
  EXPECT_THAT(error(R"([{"data_rank": 1, "from": 1}])", {"/parallel/data=1"}), HasSubstr("want at least two replicas"));
  EXPECT_THAT(error(R"([{"data_rank": 0, "from": 1}])"), HasSubstr("/failures/replicas/0/data_rank"));
  EXPECT_THAT(error(R"([{"data_rank": 1, "from": 21}])"), HasSubstr("/from: got 21, want at most 20, the last step"));
  EXPECT_THAT(error(R"([{"data_rank": 1, "from": 4, "until": 4}])"),
              HasSubstr("/until: got 4, want a step after 4, the first without"));
  const std::string twice = R"([{"data_rank": 1, "from": 7}, {"data_rank": 1, "from": 4, "until": 7}])";
  EXPECT_THAT(error(twice), HasSubstr("/failures/replicas/0: got an absence from step 7 that begins before replica 1 is"
                                      " back"));
  EXPECT_THAT(error(R"([{"data_rank": 1, "from": 4, "reload_step": 3}])"),
              HasSubstr("/failures/replicas/0/reload_step: got 3 with /parallel/zero 0, want none"));
}

TEST(Resolve, AbsencesOfReplicasWithShardsOfTheState) {
  const auto with = [](const std::string& list, const std::vector<std::string>& more = {}) {
    std::vector<std::string> overrides = {"/parallel/data=3",          "/parallel/zero=1",
                                          "/training/steps=20",        "/training/warmup_steps=2",
                                          "/checkpoint/every_steps=4", R"(/failures={"replicas": )" + list + "}"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return overrides;
  };
  using testing::ElementsAre;
  using testing::HasSubstr;
  const auto reloads = [&](const std::string& list) {
    std::vector<std::uint64_t> steps;
    const ResolvedRun run = resolved(kTwoRanks, with(list));
    EXPECT_EQ(run.run_id, resolve(run.spec, "resolved").run_id);
    EXPECT_EQ(run.config.full_data, 3);
    for (const ReplicaAbsence& absence : run.config.failures->replicas) steps.push_back(absence.reload_step.value());
    return steps;
  };
  EXPECT_THAT(reloads(R"([{"data_rank": 1, "from": 5}])"), ElementsAre(4));
  EXPECT_THAT(reloads(R"([{"data_rank": 1, "from": 8}])"), ElementsAre(4));
  EXPECT_THAT(reloads(R"([{"data_rank": 1, "from": 9}])"), ElementsAre(8));
  EXPECT_THAT(reloads(R"([{"data_rank": 1, "from": 8, "reload_step": 5}])"), ElementsAre(5));
  // A replica that comes back finds a checkpoint, which others that leave use, too.
  const char* const two = R"([{"data_rank": 1, "from": 6, "until": 8}, {"data_rank": 2, "from": 8}])";
  EXPECT_THAT(reloads(two), ElementsAre(4, 7));
  const std::string id = id_with(with(R"([{"data_rank": 1, "from": 8}])"));
  EXPECT_EQ(id, id_with(with(R"([{"data_rank": 1, "from": 8, "reload_step": 4}])", {"/checkpoint/every_steps=3"})));
  EXPECT_NE(id, id_with(with(R"([{"data_rank": 1, "from": 8}])", {"/checkpoint/every_steps=3"})));

  const auto error = [&](const std::string& list, const std::vector<std::string>& more = {}) {
    return config_error_of([&] { (void)resolved(kTwoRanks, with(list, more)); });
  };
  EXPECT_THAT(error(R"([{"data_rank": 1, "from": 8}])", {"/checkpoint=null"}),
              HasSubstr("/failures/replicas: got absences of replicas with /parallel/zero 1 and without "
                        "/checkpoint/every_steps, want checkpoints"));
  EXPECT_THAT(error(R"([{"data_rank": 1, "from": 4}])"),
              HasSubstr("/failures/replicas/0/from: got 4, want a step after the first checkpoint, at least 5 with "
                        "/checkpoint/every_steps 4"));
  EXPECT_THAT(error(R"([{"data_rank": 1, "from": 8, "reload_step": 8}])"),
              HasSubstr("/failures/replicas/0/reload_step: got 8, want 1 to 7"));
  EXPECT_THAT(error(R"([{"data_rank": 1, "from": 5, "until": 10}, {"data_rank": 1, "from": 12}])"),
              HasSubstr("got an absence from step 10 that begins before replica 1 is back"));
  const std::string link = R"(/network={"loss": {"model": "bernoulli", "loss_rate": "5%"}, "links": [{"sources": [2],
      "destinations": [0], "loss": {"model": "bernoulli", "loss_rate": "9%"}}]})";
  EXPECT_THAT(
      error(R"([{"data_rank": 1, "from": 8}])", {link, "/parallel/tensor=1"}),
      HasSubstr(
          "/failures/replicas: with /parallel/data 2: /network/classes/dp_gradient/reduce/links/0/sources/0: got 2"));
}

}  // namespace
}  // namespace droptest::experiments::resolve_parallel_test
