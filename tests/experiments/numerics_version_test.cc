// SPDX-License-Identifier: Apache-2.0
// The numbers that the versions of numerics_version.h stand for. double is nearly exact; float's products are those of
// a library that chooses its kernels by the processor.
#include "experiments/spec/numerics_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iomanip>
#include <mutex>
#include <nlohmann/json.hpp>

#include "comm/lossy/lossy_communicator.h"
#include "experiments/spec/resolve.h"
#include "experiments/spec/spec.h"
#include "experiments/spec/sweep_plan.h"
#include "models/optimizer.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "tests/comm/error_text.h"
#include "tests/comm/timed_network.h"
#include "tests/experiments/tiny_run.h"
#include "tests/models/host_gpt2.h"

namespace droptest::experiments::numerics_version_test {
namespace {

using nlohmann::json;

constexpr double kDoubleTolerance = 1e-12;
constexpr double kFloatTolerance = 1e-5;

struct Golden {
  const char* name;
  int version;
  int pipeline;      ///< ranks
  double loss_rate;  ///< loss rate of the forward pass, or between stages; negative: no loss layer
  double in_double;  ///< train loss of the last step; 0: not trained, because of the pipeline
  double in_float;   ///< final validation loss
  double seconds;    ///< virtual time, as float; 0: no clock
  int data = 1;      ///< replicas; several have their loss in the reductions of gradients and in the tied embedding
};

// Made with this test, which prints its losses.
constexpr Golden kGolden[] = {
    {"lossless", 1, 1, -1, 2.5470184313139153, 2.3198519699222464, 0},
    {"lossy", 1, 1, 0.1, 2.5702040680098883, 2.3355668080633967, 0},
    {"timed", 2, 1, 0.1, 2.5483925777048602, 2.3192737164808799, 0.0063827283199999934},
    {"lossless pipeline", 1, 2, -1, 0, 2.3640936162227546, 0},
    {"lossy pipeline", 2, 2, 0.1, 0, 2.3580811724291149, 0},
    {"lossless pipelines", 1, 2, -1, 0, 2.3588261895458182, 0, 2},
    {"pipelines with lossy updates", 2, 2, 0.1, 0, 2.3965361904913784, 0, 2},
};

RunConfig config_of(const Golden& golden) {
  RunConfig config = tiny_config();
  config.training.steps = 6;
  if (golden.pipeline > 1) {
    config.model.layers = golden.pipeline;
    config.parallel.tensor = 1;
    config.parallel.pipeline = golden.pipeline;
    config.training.accumulation = 2;
    config.parallel.data = golden.data;
    const std::vector<sim::TrafficClass> lossy =
        golden.data > 1 ? std::vector{sim::TrafficClass::kDpGradient, sim::TrafficClass::kEmbeddingGradient}
                        : std::vector{sim::TrafficClass::kPpActivation, sim::TrafficClass::kPpGradient};
    for (const sim::TrafficClass of : lossy) {
      if (golden.loss_rate < 0) continue;
      lose(config, of, golden.loss_rate);
      if (of == sim::TrafficClass::kEmbeddingGradient) config.network.of(of)->gather.fill = comm::Fill::kOwn;
    }
    return config;
  }
  if (golden.loss_rate >= 0) {
    lose(config, sim::TrafficClass::kTpForward, golden.loss_rate);
    config.network.of(sim::TrafficClass::kTpForward)->gather.fill = comm::Fill::kStale;
  }
  if (golden.seconds > 0) {
    // One repetition, in ticks of the clock: the losses depend on the times of all messages.
    config.time.emplace();
    config.time->links.within = config.time->links.between = {5e-6, 12.5e9};
    config.time->compute_seconds = 1e-3;
    sim::TimedRates rates;
    rates.mean_good_microseconds = 900;
    rates.mean_bad_microseconds = 100;
    rates.packet_microseconds = 0.1;
    config.network.of(sim::TrafficClass::kTpForward)->gather.loss = std::make_shared<sim::TimedGilbertElliott>(rates);
    comm::apply_recovery(*config.network.of(sim::TrafficClass::kTpForward), comm::protocol("selective_repeat", 1));
  }
  return config;
}

/// Trains in double as the trainer does in float; the train loss of the last step.
double train_in_double(const RunConfig& config, const Corpus& corpus) {
  double last = 0;
  comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(30), [&](comm::Communicator& group) {
    comm::LossyOptions options;
    options.network = config.network;
    options.network.seed = config.seeds.network;
    options.time = config.time;
    comm::LossyCommunicator network(group, options);
    models::HostGpt2<double> model(config.model, network, 1, {}, config.training.optimizer);
    model.initialize(config.seeds.weights);
    const TrainingBatches batches(corpus.training, config.seeds.data, config.training.batch_sequences,
                                  config.training.sequence_tokens);
    double loss = 0;
    for (std::uint64_t step = 1; step <= config.training.steps; ++step) {
      network.begin_step(step);
      model.zero_gradients();
      const Batch batch = batches.batch(step, 0);
      loss = model.forward_backward(batch.tokens, batch.targets, batch.sequences, batch.length, 1);
      const double norm = model.gradient_norm(group);
      model.step(config.training.learning_rate.at(step - 1), models::clip_scale(norm, config.training.gradient_clip));
    }
    if (group.rank() == 0) last = loss;
  });
  return last;
}

json spec_with(const json& loss) {
  return {{"name", "t"}, {"data", {{"text", "a.txt"}}}, {"parallel", {{"tensor", 2}}}, {"network", {{"loss", loss}}}};
}

TEST(NumericsVersion, StandsForTheGoldenLosses) {
  const Corpus corpus = tiny_corpus();
  for (const Golden& golden : kGolden) {
    const RunConfig config = config_of(golden);
    const double in_double = golden.pipeline > 1 ? 0 : train_in_double(config, corpus);
    const TrainingOutcome outcome = train_locally(config, corpus).outcome;
    const double in_float = outcome.validation_final_loss.value();
    const double seconds = outcome.time ? outcome.time->seconds : 0;
    const auto advice = [&](double got) {
      std::ostringstream text;
      text << golden.name << ": got " << std::setprecision(17) << got << ". Where results were to move: raise "
           << "the version of such specs in experiments/spec/numerics_version.cc, put the new losses here, and add a "
              "line "
           << "to docs/results_changes.md. Where they were not, this is a bug of the change.";
      return text.str();
    };
    EXPECT_NEAR(in_double, golden.in_double, kDoubleTolerance) << advice(in_double);
    EXPECT_NEAR(in_float, golden.in_float, kFloatTolerance) << advice(in_float);
    EXPECT_NEAR(seconds, golden.seconds, kDoubleTolerance) << advice(seconds);
  }
}

// If nothing is lost, bits do not depend on the owner of an updated part (a rank of the replicas, or a stage). So all
// of these layouts have version 1.
TEST(NumericsVersion, LosslessRunsHaveTheSameBitsWithEachZero) {
  const Corpus corpus = tiny_corpus();
  for (const int stages : {1, 2}) {
    RunConfig config = config_of({"lossless", 1, 2, -1, 0, 0, 0, 3});
    config.parallel.pipeline = stages;
    config.record.every_steps = 1;
    config.record.weights = RecordConfig::Weights::kFinal;
    const TinyResult whole = train_locally(config, corpus);
    config.sharding.zero = 1;
    config.sharding.bucket_bytes = 8192;
    const TinyResult sharded = train_locally(config, corpus);
    EXPECT_EQ(numerics_of(config).version, 1);
    EXPECT_EQ(trace_of(sharded), trace_of(whole)) << stages << " stages";
    ASSERT_FALSE(whole.outcome.weights.empty());
    for (const auto& [name, tensor] : whole.outcome.weights) {
      EXPECT_EQ(sharded.outcome.weights.at(name).bytes, tensor.bytes) << name;
    }
  }
}

// Version 2 is for specs that a change concerns; all others keep their version, and so their id.
TEST(NumericsVersion, IsThatOfTheLastChangeThatConcernsTheSpec) {
  for (const Golden& golden : kGolden) EXPECT_EQ(numerics_of(config_of(golden)).version, golden.version) << golden.name;
  const auto version = [](const json& loss, const json& time) {
    json document = spec_with(loss);
    if (!time.is_null()) document["time"] = time;
    return resolve(document, "s.json").spec["numerics_version"];
  };
  const json clock = {{"link", {{"latency_microseconds", 5}, {"bandwidth_gbit_per_second", 10}}},
                      {"compute_milliseconds", 1}};
  const auto with = [&clock](const char* member, const json& value) {
    json time = clock;
    time[member] = value;
    return time;
  };
  const json lossy = {{"model", "bernoulli"}, {"loss_rate", 0.01}};
  const json timed = {
      {"model", "timed_gilbert_elliott"}, {"mean_good_microseconds", 90}, {"mean_bad_microseconds", 10}};
  EXPECT_EQ(version(lossy, nullptr), 1);
  EXPECT_EQ(version(lossy, clock), 1) << "the clock only measures";
  EXPECT_EQ(version(timed, clock), 2);
  EXPECT_EQ(version(lossy, with("retransmission", {{"protocol", "selective_repeat"}})), 2);
  EXPECT_EQ(version({{"model", "none"}}, with("retransmission", {{"protocol", "selective_repeat"}})), 1)
      << "nothing is repeated";
  EXPECT_EQ(version(lossy, with("deadline_microseconds", 100)), 2);
  EXPECT_EQ(version(lossy, with("stragglers", {{"transfer_p99_over_p50", 2}})), 2);
  EXPECT_EQ(version(lossy, with("stragglers", {{"compute_p99_over_p50", 2}})), 1);
}

TEST(NumericsVersion, OfAPipelineFollowsFromTheLossBetweenItsStages) {
  const auto spec = [](const json& classes, const json& loss, int ranks) {
    json document = spec_with(loss);
    document["parallel"] = {{"pipeline", ranks}};
    document["model"]["layers"] = 4;
    document["training"]["accumulation"] = 2;
    if (!classes.is_null()) document["network"]["classes"] = classes;
    return resolve(document, "s.json").spec;
  };
  const auto version = [&spec](const json& classes, const json& loss, int ranks) {
    return spec(classes, loss, ranks)["numerics_version"];
  };
  const json lossy = {{"model", "bernoulli"}, {"loss_rate", 0.01}};
  const json none = {{"model", "none"}};
  EXPECT_EQ(version(nullptr, lossy, 2), 2);
  EXPECT_EQ(version(nullptr, lossy, 1), 1);
  EXPECT_EQ(version(nullptr, none, 2), 1);
  for (const char* one : {"pp_activation", "pp_gradient"}) {
    EXPECT_EQ(version({{one, {{"loss", lossy}}}}, none, 2), 2) << one;
  }
  const json between_stages = {{"pp_activation", {{"loss", lossy}}}};
  json earlier = spec(between_stages, none, 2);
  earlier["numerics_version"] = 1;
  EXPECT_THAT(config_error_of([&] { (void)resolve(earlier, "spec.json"); }),
              testing::HasSubstr("got 1, but this droptest has version 2 for a spec with loss of messages between the "
                                 "stages of a pipeline"));
}

TEST(NumericsVersion, OfAPipelineFollowsFromTheNetworkOfItsTiedEmbedding) {
  const auto spec = [](const json& parallel, const json& classes, const json& more = json::object()) {
    json document = spec_with({{"model", "none"}});
    document["parallel"] = parallel;
    document["model"]["layers"] = 4;
    document["training"]["accumulation"] = 2;
    document["network"]["classes"] = classes;
    document.update(more);
    return resolve(document, "s.json").spec;
  };
  const auto version = [&spec](const json& parallel, const json& classes, const json& more = json::object()) {
    return spec(parallel, classes, more)["numerics_version"];
  };
  const json lossy = {{"loss", {{"model", "bernoulli"}, {"loss_rate", 0.01}}}};
  const json both = {{"pipeline", 2}, {"data", 2}};
  EXPECT_EQ(version(both, json::object()), 1);
  EXPECT_EQ(version({{"pipeline", 2}, {"tensor", 2}}, {{"tp_forward", lossy}}), 1) << "of no parameters";
  for (const char* of : {"dp_gradient", "embedding_gradient"}) {
    EXPECT_EQ(version(both, {{of, lossy}}), 2) << of;
    EXPECT_EQ(version({{"pipeline", 1}, {"data", 2}}, {{"dp_gradient", lossy}}), 1);
  }
  EXPECT_EQ(version({{"pipeline", 2}, {"data", 2}, {"zero", 1}}, {{"parameter_gather", lossy}}), 2);
  EXPECT_EQ(version(both, {{"dp_gradient", {{"compression", {{"kind", "int4"}}}}}}), 2);
  const json clock = {{"link", {{"latency_microseconds", 5}, {"bandwidth_gbit_per_second", 10}}},
                      {"compute_milliseconds", 1}};
  EXPECT_EQ(version(both, json::object(), {{"time", clock}}), 2) << "times of fewer messages";
  EXPECT_EQ(version(both, json::object(), {{"outer", {{"every_steps", 4}}}}), 1);
  EXPECT_EQ(version(both, json::object(), {{"outer", {{"every_steps", 4}, {"fragments", 2}}}}), 2);
  const auto with_training = [&](const json& members, json more = json::object()) {
    more["training"] = {{"accumulation", 2}};
    more["training"].update(members);
    return more;
  };
  for (const auto& [flag_loss_rate, expected] : {std::pair(0.25, 2), std::pair(0.0, 1)}) {
    const json scaled = {{"precision", "float16"}, {"loss_scale", {{"flag_loss_rate", flag_loss_rate}}}};
    EXPECT_EQ(version(both, json::object(), with_training(scaled)), expected) << "lost flags of overflows";
  }
  // A frozen embedding is not sent at all; formerly, sums without elements took the latencies of an aggregation.
  const json frozen = {{"tensors", {{{"match", "wte.weight"}, {"frozen", true}}}}};
  const json contribution = {{"embedding_gradient", {{"path", "contribution"}}}};
  EXPECT_EQ(version(both, {{"dp_gradient", lossy}}, with_training(frozen)), 1);
  EXPECT_EQ(version(both, json::object(), with_training(frozen, {{"time", clock}})), 1);
  EXPECT_EQ(version(both, contribution, with_training(frozen)), 1);
  EXPECT_EQ(version(both, contribution, with_training(frozen, {{"time", clock}})), 2);
  // The first stage's copy of a frozen one is no part of outer steps, as any copy is none.
  const auto outer = [](const json& fragments) {
    return json{{"outer", {{"every_steps", 4}, {"fragments", fragments}}}};
  };
  EXPECT_EQ(version(both, json::object(), with_training(frozen, outer(1))), 1);
  EXPECT_EQ(version(both, json::object(), with_training(frozen, outer(2))), 2);
  json lossy_outer = lossy;
  lossy_outer["path"] = "contribution";
  EXPECT_EQ(version(both, {{"outer", lossy_outer}}, with_training(frozen, outer(1))), 2);

  json earlier = spec(both, {{"dp_gradient", lossy}});
  earlier["numerics_version"] = 1;
  EXPECT_THAT(config_error_of([&] { (void)resolve(earlier, "spec.json"); }),
              testing::HasSubstr("has version 2 for a spec with a pipeline whose tied embedding has one owner: with a "
                                 "network for dp_gradient"));
}

TEST(NumericsVersion, AnEarlierResolvedSpecIsReadAndNotTrained) {
  json document = spec_with({{"model", "bernoulli"}, {"loss_rate", 0.01}});
  document["time"] = {{"link", {{"latency_microseconds", 5}, {"bandwidth_gbit_per_second", 10}}},
                      {"compute_milliseconds", 1},
                      {"deadline_microseconds", 100}};
  json earlier = resolve(document, "s.json").spec;
  earlier["numerics_version"] = 1;
  EXPECT_THAT(config_error_of([&] { (void)resolve(earlier, "spec.json"); }),
              testing::HasSubstr("spec.json: /numerics_version: got 1, but this droptest has version 2 for a spec with "
                                 "fates that depend on virtual time"));
  EXPECT_EQ(resolve(earlier, "spec.json", nullptr, NumericsUse::kToRead).spec, earlier);
  earlier["numerics_version"] = kNewestNumerics + 1;
  EXPECT_THAT(config_error_of([&] { (void)resolve(earlier, "spec.json", nullptr, NumericsUse::kToRead); }),
              testing::HasSubstr("got 4, but this droptest has version 2"));
}

// A changed resolved spec is another spec: its version follows from its new content.
TEST(NumericsVersion, OfAChangedResolvedSpecIsThatOfTheChangedOne) {
  json document = spec_with({{"model", "bernoulli"}, {"loss_rate", 0.01}});
  document["time"] = {{"link", {{"latency_microseconds", 5}, {"bandwidth_gbit_per_second", 10}}},
                      {"compute_milliseconds", 1},
                      {"deadline_microseconds", 100}};
  const json resolved = resolve(document, "s.json").spec;
  const auto version_with = [&](const json& spec, const std::vector<std::string>& changes) {
    return plan_sweep(parse_spec(spec.dump(), "spec.json", changes)).runs.front().run.spec["numerics_version"];
  };
  EXPECT_EQ(version_with(resolved, {}), 2);
  EXPECT_EQ(version_with(resolved, {"/time=null"}), 1);
  json earlier = resolved;
  earlier["numerics_version"] = 1;
  EXPECT_EQ(version_with(earlier, {"/training/steps=7"}), 2);
  EXPECT_THAT(config_error_of([&] { (void)parse_spec(earlier.dump(), "spec.json"); }),
              testing::HasSubstr("/numerics_version: got 1, but this droptest has version 2"));
  EXPECT_EQ(parse_spec(earlier.dump(), "spec.json", {}, NumericsUse::kToRead).document, earlier);
  json swept = earlier;
  swept["sweep"] = {{"cross", {{"/training/learning_rate", {0.1, 0.2}}}}};
  EXPECT_EQ(plan_sweep(parse_spec(swept.dump(), "spec.json")).runs.size(), 2U);
}

}  // namespace
}  // namespace droptest::experiments::numerics_version_test
