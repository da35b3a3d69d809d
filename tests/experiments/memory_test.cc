// SPDX-License-Identifier: Apache-2.0
// The section `memory`: its strategies, refusals, runs with equal records, and the estimate of their memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "experiments/spec/dry_run.h"
#include "experiments/spec/memory_strategy.h"
#include "experiments/training/layer_memory.h"
#include "experiments/training/memory_estimate.h"
#include "experiments/training/run_device.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/parameter_table.h"
#include "sim/error.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/layouts_of_runs.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::memory_test {
namespace {

using models::Recompute;
using sim::TrafficClass;
using testing::HasSubstr;

std::string refusal(const std::vector<std::string>& overrides) {
  try {
    resolved(kTwoRanks, overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(MemorySection, StrategiesAreSetsOfMembersThatCanBeOverridden) {
  const std::string lossless = R"(/network={"loss":{"model":"none"}})";
  const auto memory = [&](const std::string& value) {
    return resolved(kTwoRanks, {lossless, "/memory=" + value}).spec.value("memory", nlohmann::json()).dump();
  };
  EXPECT_EQ(memory("basic"), "null");
  EXPECT_EQ(
      memory("standard"),
      R"({"cut":false,"every":1,"offload":false,"offload_optimizer":false,"offload_parameters":false,"recompute":"selective","recompute_traffic":"kept","strategy":"standard"})");
  EXPECT_EQ(
      memory("aggressive"),
      R"({"cut":true,"every":1,"offload":false,"offload_optimizer":false,"offload_parameters":false,"recompute":"full","recompute_traffic":"kept","strategy":"aggressive"})");
  EXPECT_EQ(
      memory("extreme"),
      R"({"cut":true,"every":1,"offload":true,"offload_optimizer":false,"offload_parameters":false,"recompute":"full","recompute_traffic":"kept","strategy":"extreme"})");
  EXPECT_EQ(
      memory(R"({"strategy":"extreme","cut":false,"every":2,"directory":"/scratch"})"),
      R"({"cut":false,"directory":"/scratch","every":2,"offload":true,"offload_optimizer":false,"offload_parameters":false,"recompute":"full","recompute_traffic":"kept","strategy":"extreme"})");
  EXPECT_EQ(
      memory(R"({"strategy":"extreme","recompute":"selective"})"),
      R"({"cut":false,"every":1,"offload":false,"offload_optimizer":false,"offload_parameters":false,"recompute":"selective","recompute_traffic":"kept","strategy":"extreme"})");
  EXPECT_EQ(
      memory(R"({"recompute":"full"})"),
      R"({"cut":false,"every":1,"offload":false,"offload_optimizer":false,"offload_parameters":false,"recompute":"full","recompute_traffic":"kept","strategy":"basic"})");
  EXPECT_EQ(memory(R"({"offload_optimizer":true,"directory":"/scratch"})"),
            R"({"cut":false,"directory":"/scratch","every":1,"offload":false,"offload_optimizer":true,)"
            R"("offload_parameters":false,"recompute":"none","recompute_traffic":"kept","strategy":"basic"})");
  EXPECT_EQ(memory(R"({"attention_chunk":64,"directory":"/scratch"})"),
            R"({"attention_chunk":64,"cut":false,"directory":"/scratch","every":1,"offload":false,)"
            R"("offload_optimizer":false,"offload_parameters":false,"recompute":"none","recompute_traffic":"kept",)"
            R"("strategy":"basic"})");
  EXPECT_EQ(memory(R"({"offload_optimizer":false})"), "null");
  const models::ShardOptions outside =
      resolved(kTwoRanks, {lossless, R"(/memory={"strategy":"extreme","offload_parameters":true})"}).config.sharding;
  EXPECT_FALSE(outside.offloads_moments);
  EXPECT_TRUE(outside.offloads_values);
  const RunConfig alone = resolved(kTwoRanks, {lossless, "/parallel/tensor=1", "/memory=extreme"}).config;
  EXPECT_FALSE(alone.memory.place.cut) << "there is nothing to cut over";
  EXPECT_TRUE(alone.memory.place.offloaded);
  EXPECT_EQ(alone.memory.options(4).recompute, std::vector(4, Recompute::kBlock));
}

// The class has the network of tp_forward, or its own, and no values to fill.
TEST(MemorySection, SentTrafficIsAClassOfItsOwn) {
  const std::string sent = R"(/memory={"recompute":"full","recompute_traffic":"sent"})";
  const auto classes = [](const std::vector<std::string>& overrides) {
    return resolved(kTwoRanks, overrides).spec["network"]["classes"];
  };
  const nlohmann::json kept = classes({R"(/memory={"recompute":"full"})", "/network/fill=stale"});
  EXPECT_FALSE(kept.contains("tp_recomputation"));
  nlohmann::json want = kept["tp_forward"];
  EXPECT_EQ(want["reduce"]["fill"], "stale");
  want["reduce"]["fill"] = want["gather"]["fill"] = "zero";
  nlohmann::json got = classes({sent, "/network/fill=stale"});
  EXPECT_EQ(got["tp_recomputation"], want);
  got.erase("tp_recomputation");
  EXPECT_EQ(got, kept);
  const std::string of_forward = R"(/network/classes={"tp_forward":{"payload_bytes":64,"path":"ring"}})";
  EXPECT_EQ(classes({sent, of_forward})["tp_recomputation"]["path"], "ring");
  const std::string of_both =
      R"(/network/classes={"tp_forward":{"path":"ring"},"tp_recomputation":{"payload_bytes":64}})";
  EXPECT_EQ(classes({sent, of_both})["tp_recomputation"]["path"], "direct");
  EXPECT_EQ(classes({sent, of_both})["tp_recomputation"]["payload_bytes"], 64);
}

TEST(MemorySection, SentTrafficTakesThePathThatIsChosenForTheFirstTime) {
  const std::string time = R"(/time={"link":{"latency_microseconds":5,"bandwidth_gbit_per_second":100}})";
  const auto classes =
      resolved(kTwoRanks, {R"(/memory={"recompute":"full","recompute_traffic":"sent"})", time,
                           R"(/network={"path":"auto","classes":{"tp_forward":{"payload_bytes":64}}})"})
          .spec["network"]["classes"];
  EXPECT_EQ(classes["tp_recomputation"], classes["tp_forward"]);
}

TEST(MemorySection, AResolvedSpecWithSentTrafficResolvesToItself) {
  const std::vector<std::string> overrides = {
      R"(/memory={"recompute":"full","recompute_traffic":"sent"})",
      R"(/network/classes={"tp_forward":{"gather":{"fill":"own"},"recovery":{"error_feedback":true}}})"};
  for (const bool is_lossless : {false, true}) {
    std::vector<std::string> all = overrides;
    if (is_lossless) all.emplace_back(R"(/network/classes/tp_recomputation={"loss":{"model":"none"}})");
    const ResolvedRun once = resolved(kTwoRanks, all);
    const ResolvedRun twice = resolve(once.spec, "resolved", nullptr);
    EXPECT_EQ(twice.spec, once.spec);
    EXPECT_EQ(twice.run_id, once.run_id);
    EXPECT_EQ(twice.config.memory.traffic, models::RecomputeTraffic::kSent);
    EXPECT_EQ(twice.config.network.of(TrafficClass::kTpRecomputation).has_value(), !is_lossless);
  }
}

TEST(MemorySection, EveryNthBlockEndsARunOfN) {
  MemoryConfig memory;
  memory.recompute = Recompute::kBlock;
  memory.every = 3;
  const auto a = Recompute::kSaveAll;
  const auto b = Recompute::kBlock;
  EXPECT_EQ(memory.options(7).recompute, (std::vector{a, a, b, a, a, b, a}));
}

TEST(MemorySection, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(refusal({"/memory=small"}),
              HasSubstr("/memory: got \"small\", want basic, standard, aggressive, extreme, or an object"));
  EXPECT_THAT(refusal({R"(/memory={"recompute":"some"})"}), HasSubstr("/memory/recompute: got \"some\""));
  EXPECT_THAT(refusal({R"(/memory={"recompute":"selective","offload":true})"}),
              HasSubstr("/memory/offload: got true with /memory/recompute \"selective\", want recompute \"full\""));
  EXPECT_THAT(refusal({R"(/memory={"recompute":"full","every":9})"}),
              HasSubstr("/memory/every: got 9, want at most 4, the blocks of the model"));
  EXPECT_THAT(refusal({"/parallel/tensor=1", R"(/network={})", R"(/memory={"recompute":"full","cut":true})"}),
              HasSubstr("/memory/cut: got true with /parallel/tensor 1, want several"));
  const std::string sent = R"(/memory={"recompute":"full","recompute_traffic":"sent"})";
  EXPECT_THAT(refusal({R"(/memory={"recompute":"selective","recompute_traffic":"sent"})"}),
              HasSubstr("/memory/recompute_traffic: got \"sent\" with /memory/recompute \"selective\", want recompute "
                        "\"full\""));
  EXPECT_THAT(refusal({"/parallel/tensor=1", R"(/network={})", sent}),
              HasSubstr("/memory/recompute_traffic: got \"sent\" with /parallel/tensor 1, want several"));
  const std::string time =
      R"("link":{"latency_microseconds":5,"bandwidth_gbit_per_second":100},"compute_milliseconds":1)";
  EXPECT_EQ(refusal({sent, "/time={" + time + "}"}), "");
  EXPECT_THAT(refusal({sent, "/time={" + time + ",\"deadline_microseconds\":9}"}),
              HasSubstr("/memory/recompute_traffic: got \"sent\" with /time/deadline_microseconds"));
  EXPECT_THAT(refusal({sent, R"(/network/classes={"tp_recomputation":{"gather":{"fill":"stale"}}})"}),
              HasSubstr("/network/classes/tp_recomputation/gather/fill: got \"stale\", which has no meaning"));
  EXPECT_THAT(refusal({R"(/memory={"recompute":"full","directory":"d"})"}),
              HasSubstr("/memory/directory: got \"d\" without an offload in /memory"));
}

TEST(MemorySection, RefusesChunksOfAttentionThatHasNone) {
  const std::string chunks = R"(/memory={"attention_chunk":32})";
  EXPECT_EQ(refusal({chunks}), "");
  EXPECT_EQ(refusal({chunks, R"(/data={"text":"a.txt","documents":true,"end_of_text":10})"}), "");
  EXPECT_THAT(refusal({R"(/memory={"attention_chunk":0})"}), HasSubstr("/memory/attention_chunk: got 0"));
  EXPECT_EQ(refusal({chunks, "/parallel/sequence=2"}), "");
  EXPECT_EQ(refusal({chunks, R"(/model/attention={"kind":"dilated","branches":[{"segment":4,"dilation":2}]})"}), "");
  EXPECT_EQ(refusal({chunks, "/device=cuda"}), "");
  EXPECT_THAT(refusal({chunks, "/kernels/attention=reference"}),
              HasSubstr("/kernels/attention: got \"reference\" with attention over sequence ranks"));
  EXPECT_EQ(refusal({chunks, "/training/dropout=0.1"}), "");
}

// A cut needs ranks with equal activations.
TEST(MemorySection, RefusesACutWhereRanksMayDiffer) {
  EXPECT_THAT(refusal({"/memory=aggressive"}),
              HasSubstr("/memory: got a cut of saved activations, but class tp_forward "
                        "can lose packets of one rank alone"));
  EXPECT_EQ(refusal({"/memory=aggressive", "/network/path=contribution"}), "");
  EXPECT_EQ(refusal({"/memory=aggressive", "/network/consistency=shared"}), "");
  EXPECT_EQ(refusal({R"(/memory={"strategy":"aggressive","cut":false})"}), "");
  EXPECT_EQ(refusal({"/memory=aggressive", "/network/loss/loss_rate=0"}), "");
  EXPECT_THAT(refusal({"/memory=aggressive", "/network/path=contribution", "/parallel/data=2"}),
              HasSubstr("class dp_gradient can lose packets of one rank alone"))
      << "each tensor-parallel rank has a data-parallel group of its own";
}

// Zero 3 gathers parameters in both passes; under loss, the backward pass has other parameters.
TEST(MemorySection, RefusesRecomputationWithOtherParameters) {
  const std::string sharded = R"(/parallel={"data":2,"zero":3})";
  const std::string reliable = R"(/network/classes={"parameter_gather":{"loss":{"model":"none"}}})";
  EXPECT_THAT(
      refusal({sharded, "/memory=standard"}),
      HasSubstr("/memory: got recomputation with /parallel/zero 3, but class parameter_gather can lose packets"));
  EXPECT_EQ(refusal({sharded, "/memory=basic"}), "");
  EXPECT_EQ(refusal({sharded, "/memory=standard", reliable}), "");
  EXPECT_EQ(refusal({R"(/parallel={"data":2,"zero":2})", "/memory=standard"}), "");
}

// The test includes evaluations of another batch in between, and fills of lost elements.
TEST(MemorySection, ChunksOverSequenceRanksLoseTheSamePackets) {
  for (const comm::Fill fill : {comm::Fill::kZero, comm::Fill::kAbsent, comm::Fill::kStale}) {
    for (const int kind : {0, 1, 2}) {
      RunConfig config = tiny_config();
      config.model.layers = 2;
      config.parallel.tensor = 1;
      config.parallel.sequence = 2;
      (kind == 0 ? config.model.attention.sequence.factors.ulysses : config.model.attention.sequence.factors.ring) = 2;
      if (kind == 2) config.model.attention.branches = {{8, 1}, {16, 2}};
      config.training.steps = 4;
      config.training.accumulation = 2;
      config.validation.every_steps = 1;
      for (const TrafficClass of : {TrafficClass::kSequenceForward, TrafficClass::kSequenceBackward}) {
        lose(config, of, 0.1);
      }
      config.network.of(TrafficClass::kSequenceForward)->gather.fill = fill;
      const TinyResult want = train_locally(config, tiny_corpus());
      config.model.attention.chunk_tokens = 3;
      const TinyResult got = train_locally(config, tiny_corpus());
      SCOPED_TRACE(std::string(comm::fill_entry(fill).name) + " " + std::to_string(kind));
      EXPECT_EQ(trace_of(got), trace_of(want));
      for (std::size_t i = 0; i < want.outcome.statistics.size(); ++i) {
        EXPECT_EQ(got.outcome.statistics[i].digest, want.outcome.statistics[i].digest);
        EXPECT_GT(want.outcome.statistics[i].total().lost_packets, 0U);
      }
    }
  }
}

struct Layout {
  int data, pipeline, tensor;
  models::SequenceLayout sequence{};
  std::vector<models::DilatedBranch> branches{};
  int zero = 0;
};

// In dilated attention, the last rank gathers most keys. The zigzag parts of 11 tokens have unequal lengths, and a ring
// has room for the longest part.
TEST(MemoryEstimate, OfTheModelIsTheMemoryThatItTakes) {
  const std::vector<models::DilatedBranch> branches = {{8, 1}, {16, 2}};
  for (const Layout& layout :
       {Layout{1, 1, 1}, Layout{2, 1, 2}, Layout{1, 2, 2}, Layout{1, 1, 1, {{1, 3}}, branches},
        Layout{1, 1, 1, {{1, 3}}, branches, 1}, Layout{1, 1, 1, {{2, 2}, models::SequenceLayout::Order::kZigzag}}}) {
    for (const MemoryStrategy& strategy : kMemoryStrategies) {
      RunConfig config = tiny_config();
      config.model.layers = 4;
      config.parallel.data = layout.data;
      config.parallel.pipeline = layout.pipeline;
      config.parallel.tensor = layout.tensor;
      config.parallel.sequence = layout.sequence.ranks();
      config.model.attention.sequence = layout.sequence;
      config.model.attention.branches = layout.branches;
      config.sharding.zero = layout.zero;
      config.training.sequence_tokens = 11;
      config.training.steps = 1;
      config.training.accumulation = 2;
      config.memory = memory_of_strategy(strategy, config);
      config.model.attention.chunk_tokens = layout.data == 1 ? 0 : 20;
      SCOPED_TRACE(config.parallel.text() + " " + std::string(strategy.name));
      const MemoryEstimate want = estimate_memory(config);
      MemoryPeak most;
      for (const TrainingOutcome& outcome : train_locally(config, tiny_corpus()).by_rank) {
        MemoryPeak total;
        for (const auto& [kind, peak] : outcome.memory.of_model) {
          if (kind != "offload_buffers") total.bytes += peak.bytes;
        }
        most.bytes = std::max(most.bytes, total.bytes);
        // The number of buffers depends on when the thread of the file runs; each buffer has a number after its values.
        const auto buffers = outcome.memory.of_model.find("offload_buffers");
        ASSERT_EQ(buffers != outcome.memory.of_model.end(), want.offload > 0);
        const std::uint64_t bytes = want.offload > 0 ? buffers->second.bytes : 0;
        EXPECT_LE(bytes, want.offload + 4 * sizeof(std::uint64_t));
      }
      const std::uint64_t planned = want.model.total() + want.collectives + want.loss_layer;
      const bool is_uneven_ring = layout.sequence.order == models::SequenceLayout::Order::kZigzag;
      EXPECT_LE(most.bytes, planned);
      EXPECT_GE(most.bytes, is_uneven_ring ? planned * 99 / 100 : planned);
    }
  }
}

TEST(MemoryEstimate, HasOneCopyOfTheLastParametersWithZero3) {
  for (const int zero : {1, 2, 3}) {
    const RunConfig config =
        resolved(kTwoRanks, {"/parallel/tensor=1", "/parallel/data=2", "/parallel/zero=" + std::to_string(zero)})
            .config;
    const models::ParameterTable table(models::gpt2_tensors(config.model, 1, 0));
    EXPECT_EQ(layer_memory(config).remembered, zero == 3 ? table.trained_elems * sizeof(float) : 0) << zero;
  }
}

// Memories of senders, and states at both ends, with the copies of messages that they work on.
TEST(MemoryEstimate, OfFeedbackIsTheMemoryThatItTakes) {
  using Feedback = comm::ClassRecovery::ErrorFeedback;
  using Kind = comm::CompressionKind;
  for (const Kind kind : {Kind::kInt8, Kind::kTopK, Kind::kPowerSgd}) {
    for (const Feedback feedback : {Feedback::kOff, Feedback::kOn, Feedback::kEf21}) {
      const bool has_factors = kind == Kind::kPowerSgd;
      if (has_factors && feedback == Feedback::kEf21) continue;  // refused
      RunConfig config = tiny_config();
      config.parallel.tensor = 1;
      config.parallel.data = 3;
      config.training.steps = 3;
      lose(config, TrafficClass::kDpGradient, 0.1);
      comm::ClassNetwork& network = *config.network.of(TrafficClass::kDpGradient);
      network.compression = {kind, 16, 0.1};
      network.recovery.error_feedback = feedback;
      if (has_factors) {
        network.path = "contribution";
        network.gather.loss = comm::ClassNetwork{}.gather.loss;
      }
      const MemoryEstimate want = estimate_memory(config);
      std::uint64_t remembered = 0, messages = 0;
      for (const TrainingOutcome& outcome : train_locally(config, tiny_corpus()).by_rank) {
        remembered = std::max(remembered, outcome.memory.of_model.at("loss_layer").bytes);
        messages = std::max(messages, outcome.memory.of_model.at("collectives").bytes);
      }
      SCOPED_TRACE(std::string(comm::compression_entry(kind).name) + " " + std::to_string(static_cast<int>(feedback)));
      EXPECT_EQ(remembered, want.loss_layer);
      EXPECT_EQ(messages, want.collectives);
      EXPECT_EQ(remembered > 0, has_factors || feedback != Feedback::kOff);
    }
  }
}

// One scratch for all classes of a group of ranks: sums that recomputation sends again work in that of the first ones.
TEST(MemoryEstimate, ClassesOfOneGroupShareTheirScratch) {
  RunConfig config = tiny_config();
  config.parallel.tensor = 2;
  config.training.steps = 1;
  config.memory.recompute = models::Recompute::kBlock;
  config.memory.traffic = models::RecomputeTraffic::kSent;
  lose(config, TrafficClass::kTpForward, 0.1);
  config.network.of(TrafficClass::kTpForward)->compression = {comm::CompressionKind::kInt8, 16, 0.1};
  const std::uint64_t of_first = estimate_memory(config).collectives;
  config.network.of(TrafficClass::kTpRecomputation) = config.network.of(TrafficClass::kTpForward);
  EXPECT_GT(of_first, 0U);
  EXPECT_EQ(estimate_memory(config).collectives, of_first);
  std::uint64_t measured = 0;
  for (const TrainingOutcome& outcome : train_locally(config, tiny_corpus()).by_rank) {
    measured = std::max(measured, outcome.memory.of_model.at("collectives").bytes);
  }
  EXPECT_EQ(measured, of_first);
}

// The memory of stale values for each class, on a network that replaces lost values by the last ones. All-to-alls of
// sequence ranks are not tested: they also remember a rank's own part, and the plan is too low there.
TEST(MemoryEstimate, OfStaleValuesIsTheMemoryThatTheyTake) {
  const auto with = [](const std::function<void(RunConfig&)>& change) {
    RunConfig config = tiny_config();
    config.model.layers = 3;
    config.parallel.tensor = 1;
    config.training.steps = 3;
    config.training.accumulation = 2;
    change(config);
    return config;
  };
  const std::vector<RunConfig> layouts = {
      with([](RunConfig& c) {
        c.parallel.tensor = 2;
        c.memory.recompute = models::Recompute::kBlock;
        c.memory.traffic = models::RecomputeTraffic::kSent;
      }),
      with([](RunConfig& c) {
        c.parallel.tensor = 2;
        c.tensor_sequence = true;
      }),
      with([](RunConfig& c) { c.parallel.data = 2; }),
      with([](RunConfig& c) {
        c.parallel.data = 3;
        c.sharding.zero = 1;
      }),
      with([](RunConfig& c) {
        c.parallel.data = 2;
        c.sharding.zero = 3;
        c.sharding.micro_batches = c.training.accumulation;
      }),
      with([](RunConfig& c) { c.parallel.sequence = c.model.attention.sequence.factors.ring = 2; }),
      with([](RunConfig& c) {
        c.parallel.pipeline = 2;
        c.model.layers = 4;
      }),
      with([](RunConfig& c) {
        c.parallel.data = 2;
        c.outer.every_steps = 1;
      }),
  };
  for (const RunConfig& layout : layouts) {
    const DryRun run(layout);
    for (const TrafficClass traffic_class : run.classes()) {
      RunConfig config = layout;
      lose(config, traffic_class, 0.1);
      config.network.of(traffic_class)->gather.fill = comm::Fill::kStale;
      if (traffic_class == TrafficClass::kOuter) config.network.of(traffic_class)->path = "contribution";
      SCOPED_TRACE(config.parallel.text() + " " + std::string(sim::traffic_class_name(traffic_class)) + " of layout " +
                   std::to_string(&layout - layouts.data()));
      std::uint64_t remembered = 0;
      for (const TrainingOutcome& outcome : train_locally(config, tiny_corpus()).by_rank) {
        remembered = std::max(remembered, outcome.memory.of_model.at("loss_layer").bytes);
      }
      EXPECT_EQ(remembered, estimate_memory(config).loss_layer);
      // A reduce-scatter has no gather half.
      const bool is_scattered = traffic_class == TrafficClass::kDpGradient && config.sharding.shards_state();
      EXPECT_EQ(remembered == 0, is_scattered);
    }
  }
}

// The first stage has less of both, and receives no activations.
TEST(MemoryEstimate, OfStaleValuesIsThatOfOneRank) {
  RunConfig config = tiny_config();
  config.model.layers = 4;
  config.parallel.tensor = 1;
  config.parallel.data = config.parallel.pipeline = 2;
  config.pipeline.layers_per_stage = {1, 3};
  config.training.steps = 3;
  config.training.accumulation = 5;
  for (const TrafficClass of : {TrafficClass::kPpActivation, TrafficClass::kDpGradient}) {
    lose(config, of, 0.1);
    config.network.of(of)->gather.fill = comm::Fill::kStale;
  }
  std::vector<std::uint64_t> remembered;
  for (const TrainingOutcome& outcome : train_locally(config, tiny_corpus()).by_rank) {
    remembered.push_back(outcome.memory.of_model.at("loss_layer").bytes);
  }
  EXPECT_LT(*std::ranges::min_element(remembered), *std::ranges::max_element(remembered));
  EXPECT_EQ(estimate_memory(config).loss_layer, *std::ranges::max_element(remembered));
}

TEST(MemoryEstimate, OfAModelThatNoMachineHoldsIsNotNothing) {
  RunConfig config = tiny_config();
  config.training.batch_sequences = 1 << 27;
  config.model.width = 1 << 20;
  config.model.layers = 96;
  const MemoryEstimate estimate = estimate_memory(config);
  EXPECT_GE(estimate.model.activations, std::uint64_t{1} << 62U);
  EXPECT_GE(estimate.of_process, std::uint64_t{1} << 62U);
}

// The ranks of dilated attention gather unequal numbers of keys.
TEST(MemoryEstimate, OfTheProcessHasEachSequenceRankByItself) {
  const auto beyond_the_first = [](std::vector<models::DilatedBranch> branches) {
    RunConfig config = tiny_config();
    config.parallel.tensor = 1;
    config.parallel.sequence = config.model.attention.sequence.factors.ring = 4;
    config.model.attention.branches = std::move(branches);
    const MemoryEstimate estimate = estimate_memory(config);
    return static_cast<double>(estimate.of_process) - static_cast<double>(4 * estimate.total());
  };
  // Within their own tokens the ranks are alike.
  EXPECT_LT(beyond_the_first({{16, 1}}), beyond_the_first({{4, 1}}));
}

TEST(MemoryEstimate, OfTheProcessIsTheSumOfItsParts) {
  const TemporaryFolder folder;
  const std::string text = folder.path() + "/text";
  std::ofstream(text) << std::string(1000, 'a');
  RunConfig config = tiny_config();
  config.parallel.tensor = 2;
  config.record.weights = RecordConfig::Weights::kNone;
  config.data = {};
  const auto process = [](const RunConfig& of) { return estimate_memory(of).of_process; };
  const std::uint64_t alone = process(config);
  const auto rows = static_cast<std::uint64_t>(config.training.batch_sequences * config.training.sequence_tokens);
  const std::uint64_t packed = rows * 4 * static_cast<std::uint64_t>(config.model.width) / 2 * sizeof(float);
  EXPECT_EQ(alone, 2 * (estimate_memory(config).total() + packed + (6U << 20U)) + (40U << 20U));

  config.data.text = text;
  EXPECT_EQ(process(config), alone + 2 * 1000);
  config.data = {};
  config.data.examples.emplace();
  config.data.examples->training = config.data.examples->validation = text;
  EXPECT_EQ(process(config), alone + 2 * 5 * 1000);
  config.data = {};
  config.record.weights = RecordConfig::Weights::kFinal;
  std::uint64_t elems = 0;
  for (const models::Gpt2Tensor& tensor : models::gpt2_tensors(config.model, 1, 0)) elems += tensor.slice.local_elems();
  EXPECT_EQ(process(config), alone + elems * sizeof(float));
}

TEST(MemoryEstimate, FindsTheLargestMicroBatch) {
  RunConfig config = tiny_config();
  RunConfig again = config;  // whose working memory is no linear function of the batch
  again.memory.recompute = models::Recompute::kBlock;
  for (const RunConfig& of : {config, again}) {
    for (const int sequences : {1, 2, 3, 7, 64, 65, 1000, 1 << 14}) {
      RunConfig other = of;
      other.training.batch_sequences = sequences;
      const std::uint64_t bytes = estimate_memory(other).of_process;
      EXPECT_EQ(largest_micro_batch(of, bytes), sequences);
      EXPECT_EQ(largest_micro_batch(of, bytes - 1), sequences - 1);
    }
    EXPECT_EQ(largest_micro_batch(of, 1000), 0);
  }
}

TEST(MemoryEstimate, NamesTheFirstStrategyThatFits) {
  RunConfig config = tiny_config();
  config.model.layers = 8;
  config.model.width = 512;
  config.training.batch_sequences = 64;
  const nlohmann::json plan = memory_plan_json(config, std::nullopt);
  const auto process = [&](const char* strategy) {
    return plan["strategies"][strategy]["process"].get<std::uint64_t>();
  };
  EXPECT_EQ(plan["process"], plan["strategies"]["basic"]["process"]);
  EXPECT_GT(process("basic"), process("standard"));
  EXPECT_GT(process("standard"), process("aggressive"));
  EXPECT_GT(process("aggressive"), process("extreme"));
  EXPECT_EQ(memory_that_fits(config, process("standard")), "\"standard\"");
  EXPECT_EQ(memory_that_fits(config, process("standard") - 1), "\"aggressive\"");
  EXPECT_EQ(memory_that_fits(config, 1000), "");
  const std::uint64_t offloaded = plan["all_offloaded"]["process"].get<std::uint64_t>();
  EXPECT_LT(offloaded, process("extreme"));
  EXPECT_EQ(memory_that_fits(config, offloaded),
            R"({"offload_optimizer":true,"offload_parameters":true,"strategy":"extreme"})");
}

TEST(MemoryRecord, HasTheStepAtWhichAPeakWasReached) {
  MemoryRecord record;
  record.note("activations", 5, 0);
  record.note("activations", 9, 1);
  record.note("activations", 9, 2);
  record.note("activations", 7, 3);
  record.note_process(4);
  EXPECT_FALSE(to_json(record).contains("device"));
  record.note_device(8, 1);
  record.note_device(7, 2);
  const nlohmann::json json = to_json(record);
  EXPECT_EQ(json["model"].dump(), R"({"activations":{"bytes":9,"step":1}})");
  EXPECT_EQ(json["process"]["step"], 4);
  EXPECT_EQ(json["device"].dump(), R"({"bytes":8,"step":1})");
  EXPECT_GT(json["process"]["bytes"].get<std::uint64_t>(), std::uint64_t{1} << 20U);
}

}  // namespace
}  // namespace droptest::experiments::memory_test
