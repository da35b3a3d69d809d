// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "comm/json/json_text.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/spec.h"
#include "experiments/spec/sweep_plan.h"
#include "sim/error.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"
#include "tests/sanitizers.h"

namespace droptest::experiments::resolve_test {
namespace {

using comm::canonical_json;
using nlohmann::json;
using ::testing::HasSubstr;

TEST(Resolve, ARendezvousIsWhatTheSpecNamesOrTheLaunchs) {
  const auto rendezvous = [](const std::string& value) {
    return resolved(kTwoRanks, {"/backend/rendezvous=" + value}).config.backend.rendezvous;
  };
  const auto error_of = [&rendezvous](const std::string& value) {
    return config_error_of([&] { (void)rendezvous(value); });
  };
  EXPECT_FALSE(rendezvous("null").has_value());
  EXPECT_FALSE(rendezvous(R"({"kind": "auto"})").has_value());
  EXPECT_EQ(rendezvous(R"({"kind": "file"})")->directory, "");
  EXPECT_EQ(rendezvous(R"({"kind": "file", "directory": "d"})")->directory, "d");
  EXPECT_EQ(rendezvous(R"({"kind": "redis"})")->port, 6379);
  EXPECT_EQ(rendezvous(R"({"kind": "tcp", "host": "node1", "port": 29500})")->kind, comm::Rendezvous::Kind::kTcp);
  EXPECT_EQ(rendezvous(R"({"kind": "tcp", "host": "node1", "port": 29500})")->host, "node1");
  EXPECT_EQ(rendezvous(R"({"kind": "tcp", "host": "node1", "port": 29500})")->port, 29500);
  EXPECT_EQ(rendezvous(R"({"kind": "tcp"})")->host, "");
  EXPECT_EQ(rendezvous(R"({"kind": "tcp"})")->port, 0);
  EXPECT_THAT(error_of(R"({"kind": "mpi"})"),
              HasSubstr(R"(/backend/rendezvous/kind: got "mpi", want one of "auto", "file", "redis", "tcp")"));
  EXPECT_THAT(error_of(R"({"kind": "tcp", "port": 65536})"),
              HasSubstr("/backend/rendezvous/port: got 65536, want an integer in [1, 65535]"));
}

TEST(Resolve, WritesEverythingOut) {
  EXPECT_EQ(
      canonical_json(resolved(kTwoRanks).spec),
      R"({"backend":{"name":"local","rendezvous":{"kind":"auto"},"threads_per_rank":1,"timeout_seconds":60.0},)"
      R"("data":{"text":"a.txt","validation_fraction":0.1},"description":"",)"
      R"("model":{"context":128,"heads":4,"layers":4,"vocabulary":256,"width":128},"name":"t",)"
      R"("network":{"classes":{)"
      R"("tp_backward":{"burst_scope":"link","consistency":"per_receiver",)"
      R"("gather":{"fill":"zero","loss":{"loss_rate":0.05,"model":"bernoulli"}},"path":"direct",)"
      R"("payload_bytes":1408,"reduce":{"fill":"zero","loss":{"loss_rate":0.05,"model":"bernoulli"}}},)"
      R"("tp_forward":{"burst_scope":"link","consistency":"per_receiver",)"
      R"("gather":{"fill":"zero","loss":{"loss_rate":0.05,"model":"bernoulli"}},"path":"direct",)"
      R"("payload_bytes":1408,"reduce":{"fill":"zero","loss":{"loss_rate":0.05,"model":"bernoulli"}}}}},)"
      R"("numerics_version":1,"parallel":{"tensor":2},"record":{"every_steps":10,"links":"omit","sample_every_steps":50,)"
      R"("weights":"final"},"seeds":{"data":1,"network":1,"weights":1},)"
      R"("training":{"accumulation":1,"batch_sequences":8,"beta1":0.9,"beta2":0.95,"epsilon":1e-08,"final_learning_rate":0.0001,"gradient_clip":1.0,"learning_rate":0.001,)"
      R"("sequence_tokens":128,"steps":300,"warmup_steps":0,"weight_decay":0.1},)"
      R"("validation":{"every_steps":50,"network":"lossless","tokens":65536}})");
}

TEST(Resolve, EachSeedCanBeSaidAlone) {
  const ResolvedRun run = resolved(kTwoRanks, {"/seed=5", "/seeds/network=7"});
  EXPECT_EQ(run.config.seeds, (Seeds{5, 5, 7}));
  EXPECT_EQ(run.config.network.seed, 7U);
  EXPECT_EQ(canonical_json(run.spec["seeds"]), R"({"data":5,"network":7,"weights":5})");
  EXPECT_EQ(resolved(kTwoRanks, {"/seeds/weights=2"}).config.seeds, (Seeds{2, 1, 1}));
  EXPECT_EQ(resolved(kTwoRanks, {"/seeds/data=2"}).config.seeds, (Seeds{1, 2, 1}));
  EXPECT_EQ(id_with({R"(/seeds={"weights": 6, "data": 6, "network": 6})"}), id_with({"/seed=6"}));
  std::set<std::string> ids = {id_with({}), id_with({"/seeds/weights=2"}), id_with({"/seeds/data=2"}),
                               id_with({"/seeds/network=2"})};
  EXPECT_EQ(ids.size(), 4U);
  EXPECT_THAT(config_error_of([] {
                (void)resolved(kTwoRanks, {"/seed=5", R"(/seeds={"weights": 6, "data": 6, "network": 6})"});
              }),
              HasSubstr("s.json: /seed: got 5, which changes nothing, since /seeds has weights, data and network"));
  EXPECT_THAT(config_error_of([] { (void)resolved(kTwoRanks, {R"(/repeat={"network": 2})"}); }),
              HasSubstr("s.json: /repeat: got repeats, want one run"));
}

TEST(Resolve, PrecisionIsOneElementTypeForEachUse) {
  using models::Precision;
  const auto of = [](const std::string& value) { return resolved(kTwoRanks, {"/training/precision=" + value}); };
  const ResolvedRun products = of("bfloat16");
  EXPECT_EQ(products.config.training.precision, (models::ModelPrecision{Precision::kBfloat16, Precision::kFloat32}));
  const json written = {{"compute", "bfloat16"}, {"message", "float32"}, {"master", "float32"}};
  EXPECT_EQ(products.spec.at("training").at("precision"), written);
  EXPECT_EQ(of(R"({"compute": "bfloat16"})").run_id, products.run_id);
  EXPECT_EQ(of(written.dump()).run_id, products.run_id);
  EXPECT_EQ(of(R"({"message": "bfloat16"})").config.training.precision,
            (models::ModelPrecision{Precision::kFloat32, Precision::kBfloat16}));
  // A model with only float32 resolves as before there was a choice, with the same id.
  EXPECT_FALSE(of(R"({"message": "float32"})").spec.at("training").contains("precision"));
  EXPECT_EQ(of("float32").run_id, id_with({}));

  const auto error_of = [&of](const std::string& value) { return config_error_of([&] { of(value); }); };
  EXPECT_THAT(error_of("float8"),
              HasSubstr(R"(/training/precision: got "float8", want float32, bfloat16, float16, tf32, or an object)"));
  EXPECT_THAT(error_of(R"({"message": "tf32"})"),
              HasSubstr(R"(/training/precision/message: got "tf32", want one of "float32", "bfloat16", "float16")"));
  EXPECT_THAT(error_of("tf32"), HasSubstr(R"(/training/precision: got "tf32" on /device "cpu")"));
  EXPECT_THAT(error_of(R"({"compute": "tf32"})"), HasSubstr(R"(/training/precision/compute: got "tf32" on)"));
  EXPECT_THAT(error_of(R"({"master": "bfloat16"})"),
              HasSubstr(R"(/training/precision/master: got "bfloat16", want one of "float32")"));
  EXPECT_THAT(error_of(R"({"messages": "bfloat16"})"), HasSubstr("/training/precision/messages: got an unknown key"));
}

TEST(Resolve, Float16HasADynamicLossScale) {
  using Kind = models::LossScaleConfig::Kind;
  const auto of = [](const std::vector<std::string>& changes) { return resolved(kTwoRanks, changes); };
  EXPECT_EQ(of({}).config.training.loss_scale.kind, Kind::kNone);
  EXPECT_FALSE(of({"/training/precision=bfloat16"}).spec.at("training").contains("loss_scale"));
  const json usual = {{"kind", "dynamic"}, {"initial", 65536}, {"growth", 2.0},  {"backoff", 0.5},
                      {"interval", 2000},  {"hysteresis", 1},  {"minimum", 1.0}, {"give_up_after", 50}};
  const ResolvedRun compute = of({"/training/precision=float16"});
  EXPECT_EQ(compute.spec.at("training").at("loss_scale"), usual);
  EXPECT_EQ(compute.config.training.loss_scale, models::LossScaleConfig{.kind = Kind::kDynamic});
  EXPECT_EQ(of({R"(/training/precision={"message": "float16"})"}).spec.at("training").at("loss_scale"), usual);
  EXPECT_EQ(of({"/training/precision=float16", "/training/loss_scale={}"}).run_id, compute.run_id);
  EXPECT_EQ(of({"/training/precision=float16", "/training/loss_scale=" + usual.dump()}).run_id, compute.run_id);

  const ResolvedRun fixed = of({"/training/loss_scale=1024"});
  EXPECT_EQ(fixed.spec.at("training").at("loss_scale"),
            (json{{"kind", "static"}, {"initial", 1024}, {"give_up_after", 50}}));
  EXPECT_EQ(fixed.config.training.loss_scale, (models::LossScaleConfig{.kind = Kind::kStatic, .initial = 1024}));
  EXPECT_EQ(of({R"(/training/loss_scale={"kind": "static", "initial": 1024})"}).run_id, fixed.run_id);
  const ResolvedRun lossy = of({R"(/training/loss_scale={"interval": 5, "minimum": 0, "flag_loss_rate": 0.25})"});
  EXPECT_EQ(lossy.config.training.flag_loss_rate, 0.25);
  EXPECT_EQ(lossy.config.training.loss_scale.interval, 5U);
  EXPECT_EQ(lossy.config.training.loss_scale.minimum, 0);

  const auto error_of = [&of](const std::string& value) {
    return config_error_of([&] { of({"/training/loss_scale=" + value}); });
  };
  EXPECT_THAT(error_of(R"({"kind": "static", "growth": 4})"),
              HasSubstr(R"(/training/loss_scale/growth: got 4.0, which "static" has no use for)"));
  EXPECT_THAT(error_of(R"({"initial": 2, "minimum": 4})"),
              HasSubstr("/training/loss_scale/minimum: got 4.0, want at most 2.0, the initial scale"));
  EXPECT_THAT(error_of("0"), HasSubstr("/training/loss_scale: got 0"));
  EXPECT_THAT(error_of(R"({"backoff": 1})"), HasSubstr("/training/loss_scale/backoff: got 1"));
}

TEST(Resolve, AResolvedSpecResolvesToItself) {
  std::filesystem::current_path(DROPTEST_SPECS "/../..");  // specs name files from the repository's root
  for (const auto& entry : std::filesystem::recursive_directory_iterator(DROPTEST_SPECS)) {
    if (entry.path().extension() != ".json") continue;
    const SweepPlan plan = plan_sweep(read_spec(entry.path()));
    for (std::size_t i = 0; i < plan.runs.size(); ++i) {
      if (kSanitized && i % 7 != 0 && i + 1 != plan.runs.size()) continue;
      const PlannedRun& planned = plan.runs[i];
      const ResolvedRun again = resolve(comm::parse_json(planned.run.spec.dump(), "spec.json"), "spec.json");
      ASSERT_EQ(canonical_json(again.spec), canonical_json(planned.run.spec)) << entry.path();
      ASSERT_EQ(again.run_id, planned.run.run_id);
      ASSERT_TRUE(schema_of(SchemaKind::kResolvedSpec).check(again.spec).empty());
    }
  }
}

TEST(Resolve, ARunWithSgdResolvesToItself) {
  const ResolvedRun run = resolved(kTwoRanks, {"/training/optimizer=sgd", "/training/momentum=0.8"});
  const ResolvedRun again = resolve(run.spec, "spec.json");
  EXPECT_EQ(canonical_json(again.spec), canonical_json(run.spec));
  EXPECT_EQ(again.run_id, run.run_id);
}

TEST(Resolve, AnAdversaryIsPartOfTheRunWhereItHasAMeaning) {
  const std::string selection = "/network/reduce/selection=";
  EXPECT_EQ(id_with({selection + "by_fate"}), id_with({})) << "the word for what is usual";
  EXPECT_NE(id_with({selection + "largest_norm"}), id_with({}));
  EXPECT_EQ(id_with({selection + "largest_norm", R"(/network/reduce/loss={"model": "none"})"}),
            id_with({R"(/network/reduce/loss={"model": "none"})"}));
  EXPECT_EQ(resolved(kTwoRanks, {selection + "largest_norm"})
                .config.network.of(sim::TrafficClass::kTpForward)
                ->reduce.selection,
            comm::LossSelection::kLargestNorm);
  const auto error = [&](const std::vector<std::string>& overrides) {
    return config_error_of([&overrides] { (void)resolved(kTwoRanks, overrides); });
  };
  EXPECT_THAT(error({selection + "largest_norm", "/network/path=contribution"}),
              HasSubstr("s.json: /network/reduce/selection: got \"largest_norm\" on path contribution, where a rank"));
  EXPECT_THAT(
      error({"/network/classes/tp_forward/gather/selection=largest_norm"}),
      HasSubstr("s.json: /network/classes/tp_forward/gather/selection: got \"largest_norm\", which is defined"));
  EXPECT_THAT(error({selection + "smallest"}), HasSubstr("s.json: /network/reduce/selection: got \"smallest\""));
}

TEST(Resolve, TheConfigurationSaysWhatTheSpecSays) {
  const RunConfig config = resolved(kTwoRanks, {"/seed=18446744073709551615",
                                                "/model/preset=small",
                                                "/model/layers=3",
                                                "/model/weights=w.safetensors",
                                                "/data/text=null",
                                                "/data/tokens=t.bin",
                                                "/data/format=uint16",
                                                "/backend/name=gloo",
                                                "/backend/timeout_seconds=0.25",
                                                "/backend/threads_per_rank=2",
                                                R"(/backend/rendezvous={"kind": "redis", "host": "h", "port": 7000})",
                                                "/training/steps=40",
                                                "/training/learning_rate=0.5",
                                                "/training/warmup_steps=4",
                                                "/training/gradient_clip=0",
                                                "/validation/network=lossy",
                                                "/record/links=include",
                                                "/record/weights=none",
                                                "/network/classes/tp_backward/loss={\"model\": \"none\"}",
                                                "/network/burst_scope=message",
                                                "/network/consistency=shared",
                                                "/network/gather/fill=own",
                                                "/network/fill=count_rescale"})
                               .config;
  EXPECT_EQ(config.seeds.weights, 18446744073709551615ULL);
  EXPECT_EQ(config.network.seed, 18446744073709551615ULL);
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_EQ(config.model.width, 768);
  EXPECT_EQ(config.model.vocabulary, 50257);
  EXPECT_EQ(config.initial_weights, "w.safetensors");
  EXPECT_EQ(config.data.text, "");
  EXPECT_EQ(config.data.tokens, "t.bin");
  EXPECT_EQ(config.data.format, TokenFormat::kUint16);
  EXPECT_EQ(config.parallel.tensor, 2);
  EXPECT_EQ(config.backend.name, "gloo");
  EXPECT_EQ(config.backend.timeout.count(), 250);
  EXPECT_EQ(config.backend.threads_per_rank, 2);
  EXPECT_EQ(config.backend.rendezvous->kind, comm::Rendezvous::Kind::kRedis);
  EXPECT_EQ(config.backend.rendezvous->host, "h");
  EXPECT_EQ(config.backend.rendezvous->port, 7000);
  EXPECT_EQ(config.training.steps, 40U);
  EXPECT_EQ(config.training.sequence_tokens, 1024);
  EXPECT_EQ(config.training.learning_rate.peak, 0.5);
  EXPECT_EQ(config.training.learning_rate.floor, 0.05);
  EXPECT_EQ(config.training.learning_rate.warmup_steps, 4U);
  EXPECT_EQ(config.training.learning_rate.total_steps, 40U);
  EXPECT_EQ(config.training.gradient_clip, 0);
  EXPECT_EQ(config.validation.network, ValidationConfig::Network::kLossy);
  EXPECT_EQ(config.record.links, RecordConfig::Links::kInclude);
  EXPECT_EQ(config.record.weights, RecordConfig::Weights::kNone);
  EXPECT_FALSE(config.network.of(sim::TrafficClass::kTpBackward).has_value());
  const sim::Boxed<comm::ClassNetwork>& forward = config.network.of(sim::TrafficClass::kTpForward);
  ASSERT_TRUE(forward.has_value());
  EXPECT_EQ(forward->path, "direct");
  EXPECT_EQ(forward->reduce.loss->loss_rate(), 0.05);
  EXPECT_EQ(forward->reduce.fill, comm::Fill::kCountRescale);
  EXPECT_EQ(forward->gather.fill, comm::Fill::kOwn);
  EXPECT_EQ(forward->reduce.loss, forward->gather.loss) << "processes written alike are shared";
  EXPECT_EQ(forward->burst_scope, comm::BurstScope::kMessage);
  EXPECT_EQ(forward->consistency, comm::Consistency::kShared);
  EXPECT_FALSE(config.network.of(sim::TrafficClass::kControl).has_value());
}

json network_of(const std::vector<std::string>& overrides) {
  return resolved(kTwoRanks, overrides).spec["network"]["classes"];
}

TEST(Resolve, OneHalfOverridesBothAndOneClassOverridesAll) {
  const std::string none = R"({"model":"none"})";
  const json reduce_only = network_of({"/network/gather/loss=" + none})["tp_forward"];
  EXPECT_EQ(reduce_only["gather"]["loss"]["model"], "none");
  EXPECT_EQ(reduce_only["reduce"]["loss"]["model"], "bernoulli");
  // A class's `loss` speaks of both its halves again.
  const json both = network_of(
      {"/network/gather/loss=" + none, R"(/network/classes/tp_forward/loss={"model":"bernoulli","loss_rate":0.25})"});
  EXPECT_EQ(both["tp_forward"]["gather"]["loss"]["loss_rate"], 0.25);
  EXPECT_EQ(both["tp_backward"]["gather"]["loss"]["model"], "none");
  // Keys that a class does not name stay as they are for all.
  const json keyed = network_of({"/network/payload_bytes=64", "/network/classes/tp_forward/consistency=shared"});
  EXPECT_EQ(keyed["tp_forward"]["payload_bytes"], 64);
  EXPECT_EQ(keyed["tp_forward"]["consistency"], "shared");
  EXPECT_EQ(keyed["tp_backward"]["consistency"], "per_receiver");
}

TEST(Resolve, AFillGoesToTheHalvesWhereItHasAMeaning) {
  const auto fills = [](const std::string& fill) {
    const json forward = network_of({"/network/fill=" + fill})["tp_forward"];
    return forward["reduce"]["fill"].get<std::string>() + " " + forward["gather"]["fill"].get<std::string>();
  };
  EXPECT_EQ(fills("zero"), "zero zero");
  EXPECT_EQ(fills("count_rescale"), "count_rescale zero");
  EXPECT_EQ(fills("inverse_probability"), "inverse_probability zero");
  EXPECT_EQ(fills("stale"), "stale stale");
  EXPECT_EQ(fills("own"), "zero own");
}

TEST(Resolve, OnContributionTheLossIsTheReduceHalfs) {
  const json forward = network_of({"/network/path=contribution"})["tp_forward"];
  EXPECT_EQ(forward["reduce"]["loss"]["model"], "bernoulli");
  EXPECT_EQ(forward["gather"]["loss"]["model"], "none");
  // The other half loses packets only if it is named, and the `loss` of a class overrides that.
  const json named =
      network_of({"/network/path=contribution", R"(/network/gather/loss={"model":"bernoulli","loss_rate":0.5})",
                  R"(/network/classes/tp_forward/loss={"model":"bernoulli","loss_rate":0.25})"});
  EXPECT_EQ(named["tp_backward"]["gather"]["loss"]["loss_rate"], 0.5);
  EXPECT_EQ(named["tp_forward"]["reduce"]["loss"]["loss_rate"], 0.25);
  EXPECT_EQ(named["tp_forward"]["gather"]["loss"]["model"], "none");
}

TEST(Resolve, OnPathsBySizeALossOfBothHalvesHasOneMeaning) {
  const std::string contribution = R"("sized_paths": [{"up_to_elements": 100, "path": "contribution"}])";
  const auto with = [](const std::string& section) {
    return std::vector<std::string>{"/network/classes/tp_forward={" + section + "}"};
  };
  EXPECT_THAT(config_error_of([&] { network_of(with(contribution)); }),
              HasSubstr("s.json: /network/classes/tp_forward/sized_paths: got path contribution next to path direct, "
                        "where one `loss` for both halves has two meanings"));
  EXPECT_THAT(config_error_of([&] {
                network_of(with(R"("path": "contribution", "sized_paths": [{"up_to_elements": 9, "path": "ring"}])"));
              }),
              HasSubstr("/network/classes/tp_forward/sized_paths: got path ring next to path contribution"));
  EXPECT_THAT(config_error_of([&] {
                network_of(with(contribution + R"(, "gather": {"loss": {"model": "none"}},
                    "links": [{"sources": [0], "loss": {"model": "bernoulli", "loss_rate": 0.5}}])"));
              }),
              HasSubstr("where one `links` for both halves has two meanings"));
  const json named = network_of(with(contribution + R"(, "gather": {"loss": {"model": "none"}})"));
  EXPECT_EQ(named["tp_forward"]["reduce"]["loss"]["model"], "bernoulli");
  EXPECT_EQ(named["tp_forward"]["gather"]["loss"]["model"], "none");
  const json same = network_of(with(contribution + R"(, "path": "contribution")"));
  EXPECT_EQ(same["tp_forward"]["gather"]["loss"]["model"], "none");
  const json both = network_of(with(R"("sized_paths": [{"up_to_elements": 100, "path": "ring"}])"));
  EXPECT_EQ(both["tp_forward"]["gather"]["loss"]["model"], "bernoulli");
  // The resolved spec names both halves.
  const ResolvedRun run = resolved(kTwoRanks, with(contribution + R"(, "gather": {"loss": {"model": "none"}})"));
  EXPECT_EQ(resolve(run.spec, "again").run_id, run.run_id);
}

TEST(Resolve, AFillThatShardedParametersCannotHaveIsRefusedWhereItIsWritten) {
  const auto error = [](const std::vector<std::string>& fills) {
    std::vector<std::string> overrides = {"/parallel/data=2", "/parallel/zero=3"};
    overrides.insert(overrides.end(), fills.begin(), fills.end());
    return config_error_of([&] { (void)resolved(kTwoRanks, overrides); });
  };
  const std::string refused = ": got \"own\", want \"stale\" or \"zero\" with /parallel/zero 3";
  const std::string in_class = "/network/classes/parameter_gather";
  for (const std::string& pointer : {in_class + "/fill", in_class + "/gather/fill"}) {
    EXPECT_THAT(error({pointer + "=own"}), HasSubstr("s.json: " + pointer + refused));
  }
  EXPECT_THAT(error({in_class + "/fill=stale", in_class + "/gather/fill=own"}),
              HasSubstr("s.json: " + in_class + "/gather/fill" + refused));
}

TEST(Resolve, LostParametersAreTheLastOnesUnlessTheirClassNamesAFill) {
  const auto sharded = [](int zero, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"/parallel/data=2", "/parallel/zero=" + std::to_string(zero)});
    return resolved(kTwoRanks, more);
  };
  const auto fill = [](const ResolvedRun& run) {
    return run.spec["network"]["classes"]["parameter_gather"]["gather"]["fill"].get<std::string>();
  };
  const std::string named = "/network/classes/parameter_gather/fill=";
  for (const int zero : {1, 2, 3}) {
    const std::string usual = zero == 3 ? "stale" : "own";
    for (const std::string of_all : {"/network/fill=zero", "/network/fill=stale", "/network/gather/fill=own_scaled"}) {
      EXPECT_EQ(fill(sharded(zero, {of_all})), usual) << of_all;
    }
    const ResolvedRun run = sharded(zero);
    EXPECT_EQ(fill(run), usual);
    EXPECT_EQ(run.spec["network"]["classes"]["dp_gradient"]["reduce"]["fill"], "zero");
    EXPECT_TRUE(run.warnings.empty());
    // The run equals one that names this fill, also in the first version of the numerics.
    EXPECT_EQ(run.spec["numerics_version"], 1);
    EXPECT_EQ(sharded(zero, {named + usual}).run_id, run.run_id);
    const ResolvedRun again = resolve(run.spec, "again");
    EXPECT_EQ(again.run_id, run.run_id);
    EXPECT_TRUE(again.warnings.empty());
  }
}

// Gradients of the tied embedding have the fill of all classes; its values have a separate fill.
TEST(Resolve, LostValuesOfTheTiedEmbeddingAreItsLastOnesUnlessItsClassNamesAFill) {
  const auto piped = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"/parallel/tensor=1", "/parallel/pipeline=2"});
    return resolved(kTwoRanks, more);
  };
  const auto fills = [&](const std::vector<std::string>& more) {
    const json section = piped(more).spec["network"]["classes"]["embedding_gradient"];
    return section["reduce"]["fill"].get<std::string>() + " " + section["gather"]["fill"].get<std::string>();
  };
  const std::string in_class = "/network/classes/embedding_gradient";
  EXPECT_EQ(fills({}), "zero own");
  EXPECT_EQ(fills({"/network/fill=stale"}), "stale own");
  EXPECT_EQ(fills({"/network/gather/fill=stale", "/network/fill=count_rescale"}), "count_rescale own");
  EXPECT_EQ(fills({in_class + "/fill=stale"}), "stale stale");
  EXPECT_EQ(fills({in_class + "/gather/fill=zero"}), "zero zero");
  const std::vector<Warning> found = piped({in_class + "/gather/fill=zero"}).warnings;
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].pointer, in_class + "/gather/fill");
  const ResolvedRun run = piped({});
  EXPECT_TRUE(run.warnings.empty());
  EXPECT_EQ(resolve(run.spec, "again").run_id, run.run_id);
  EXPECT_THAT(config_error_of([&] {
                (void)piped({in_class + "/consistency=shared", in_class + "/fill=stale"});
              }),
              HasSubstr("s.json: " + in_class + "/consistency: got a network on which an owner loses its own"));
  EXPECT_EQ(fills({in_class + "/consistency=shared"}), "zero own");
  EXPECT_THAT(config_error_of([&] { (void)piped({in_class + R"(/compression={"kind": "top_k"})"}); }),
              HasSubstr("s.json: " + in_class +
                        "/compression/kind: got top_k for embedding_gradient, whose sum one rank "
                        "gets; want a compression of values: float16, bfloat16, int8, int4"));
  EXPECT_EQ(fills({in_class + R"(/compression={"kind": "int8"})"}), "zero own");
}

// One rank gets the sum of the tied embedding's gradients, which only codes of values can make smaller.
TEST(Resolve, ACompressionOfAllClassesLeavesOutTheTiedEmbeddingUnlessItCodesValues) {
  const auto classes = [](const std::string& path, const std::string& compression) {
    return resolved(kTwoRanks, {"/parallel/tensor=1", "/parallel/pipeline=2", "/parallel/data=2",
                                "/network/path=" + path, "/network/compression=" + compression})
        .spec["network"]["classes"];
  };
  for (const json& all : {classes("direct", R"({"kind": "top_k", "fraction": "10%"})"),
                          classes("contribution", R"({"kind": "power_sgd", "rank": 2})")}) {
    EXPECT_TRUE(all["dp_gradient"].contains("compression"));
    EXPECT_FALSE(all["embedding_gradient"].contains("compression"));
  }
  EXPECT_EQ(classes("direct", R"({"kind": "int8"})")["embedding_gradient"]["compression"]["kind"], "int8");
}

TEST(Resolve, ZerosInThePlaceOfLostParametersWarn) {
  const auto warnings = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"/parallel/data=2", "/parallel/zero=1"});
    return resolved(kTwoRanks, more).warnings;
  };
  const std::string in_class = "/network/classes/parameter_gather";
  for (const std::string& pointer : {in_class + "/fill", in_class + "/gather/fill"}) {
    const std::vector<Warning> found = warnings({pointer + "=zero"});
    ASSERT_EQ(found.size(), 1U) << pointer;
    EXPECT_EQ(found[0].pointer, pointer);
    EXPECT_EQ(
        found[0].message,
        "got \"zero\", which puts zeros in the place of parameters that were lost; want \"own\", or no fill here, "
        "which means it");
  }
  // A resolved spec names the fills of halves that lose nothing, too.
  EXPECT_TRUE(warnings({in_class + R"(={"loss": {"model": "none"}, "fill": "zero"})"}).empty());
}

TEST(Resolve, GroupsBelongToThePathThatHasThem) {
  const ResolvedRun grouped = resolved(kTwoRanks, {"/network/path=hierarchical", "/network/group_ranks=2"});
  EXPECT_EQ(grouped.config.network.of(sim::TrafficClass::kTpForward)->group_ranks, 2);
  EXPECT_EQ(grouped.spec["network"]["classes"]["tp_forward"]["group_ranks"], 2);
  EXPECT_NE(grouped.run_id, id_with({"/network/path=hierarchical", "/network/group_ranks=1"}));
  // Elsewhere they change nothing, so that a sweep over paths can have them.
  EXPECT_FALSE(
      resolved(kTwoRanks, {"/network/group_ranks=2"}).spec["network"]["classes"]["tp_forward"].contains("group_ranks"));
  EXPECT_EQ(id_with({"/network/group_ranks=2"}), id_with({}));
}

TEST(Resolve, WhatHasNoMeaningOnAPathIsRefusedWithItsPlace) {
  const auto error_of = [](const std::vector<std::string>& overrides) {
    try {
      resolved(kTwoRanks, overrides);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of({"/network/path=hierarchical"}),
              HasSubstr("s.json: /network/group_ranks: is missing, but path hierarchical needs"));
  EXPECT_THAT(error_of({R"(/network/classes/tp_backward={"path": "hierarchical"})"}),
              HasSubstr("s.json: /network/classes/tp_backward/group_ranks: is missing"));
  EXPECT_THAT(error_of({"/network/path=hierarchical", "/network/group_ranks=0"}),
              HasSubstr("/network/group_ranks: got 0"));
  for (const char* path : {"ring", "halving_doubling", "tree"}) {
    EXPECT_THAT(
        error_of({std::string("/network/path=") + path, "/network/consistency=shared"}),
        HasSubstr("s.json: /network/consistency: got \"shared\", which has no meaning on path " + std::string(path)));
  }
  EXPECT_THAT(error_of({"/network/path=loop"}), HasSubstr("ring"));
}

TEST(Resolve, OnlyClassesThatCanLosePacketsAreThere) {
  EXPECT_EQ(network_of({"/network/loss={\"model\":\"none\"}"}), json::object());
  EXPECT_EQ(network_of({"/parallel/tensor=1"}), json::object()) << "one rank sends nothing";
  EXPECT_EQ(network_of({"/network/classes/tp_forward/loss={\"model\":\"none\"}"}).size(), 1U);
  // A rate of 0 was asked for: packets are counted, none is lost.
  EXPECT_EQ(network_of({"/network/loss/loss_rate=0"}).size(), 2U);
}

TEST(Resolve, GilbertElliottKeepsTheParametersItWasGivenBy) {
  const json by_rate = network_of({R"(/network/loss={"model":"gilbert_elliott","loss_rate":"20%",)"
                                   R"("mean_burst_packets":8})"})["tp_forward"]["reduce"]["loss"];
  EXPECT_EQ(canonical_json(by_rate), R"({"loss_rate":0.2,"mean_burst_packets":8.0,"model":"gilbert_elliott"})");
  const json by_four = network_of({R"(/network/loss={"model":"gilbert_elliott","p_good_to_bad":"1%",)"
                                   R"("p_bad_to_good":0.25,"loss_bad":"90%"})"})["tp_forward"]["reduce"]["loss"];
  EXPECT_EQ(canonical_json(by_four),
            R"({"loss_bad":0.9,"loss_good":0.0,"model":"gilbert_elliott","p_bad_to_good":0.25,"p_good_to_bad":0.01})");
}

TEST(Resolve, ProfiledStepsAreTheFirstAndTheLast) {
  const auto steps = [](const std::string& value) {
    return resolved(kTwoRanks, {"/record/profile_steps=" + value}).config.record.profile_steps;
  };
  EXPECT_FALSE(resolved(kTwoRanks).config.record.profile_steps.has_value());
  EXPECT_EQ(steps("[7, 7]"), std::pair(std::uint64_t{7}, std::uint64_t{7}));
  EXPECT_EQ(steps("[1, 1000]"), std::pair(std::uint64_t{1}, std::uint64_t{1000}));
  EXPECT_EQ(id_with({"/record/profile_steps=[2, 3]"}), id_with({})) << "a trace changes no result";
  for (const char* wrong : {"[3, 2]", "[1, 2, 3]", "[1, 1001]"}) {
    EXPECT_THAT(config_error_of([&] { (void)steps(wrong); }),
                HasSubstr("/record/profile_steps: got " + canonical_json(json::parse(wrong)) +
                          ", want the first step and the last one, not before it, of at most 1000 steps"));
  }
  EXPECT_THAT(config_error_of([&] { (void)steps("[0, 2]"); }), HasSubstr("/record/profile_steps/0: got 0"));
}

TEST(Resolve, PercentIsTheSameNumberAsTheFraction) {
  for (const auto& [percent, fraction] : std::vector<std::pair<std::string, std::string>>{
           {"5%", "0.05"}, {"0.1%", "0.001"}, {"7%", "0.07"}, {"33.3%", "0.333"}, {"100%", "1"}, {"1e-3%", "1e-5"}}) {
    EXPECT_EQ(id_with({"/network/loss/loss_rate=\"" + percent + "\""}),
              id_with({"/network/loss/loss_rate=" + fraction}))
        << percent;
  }
}

}  // namespace
}  // namespace droptest::experiments::resolve_test
