// SPDX-License-Identifier: Apache-2.0
// The section `memory`: its strategies, refusals, runs with equal records, and the estimate of their memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "experiments/run/memory_estimate.h"
#include "experiments/run/run_device.h"
#include "experiments/spec/resolve_memory.h"
#include "sim/error.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/experiments/layouts_of_runs.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments {
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
      R"({"cut":false,"every":1,"offload":false,"offload_optimizer":false,"offload_parameters":false,"recompute":"selective","strategy":"standard"})");
  EXPECT_EQ(
      memory("aggressive"),
      R"({"cut":true,"every":1,"offload":false,"offload_optimizer":false,"offload_parameters":false,"recompute":"full","strategy":"aggressive"})");
  EXPECT_EQ(
      memory("extreme"),
      R"({"cut":true,"every":1,"offload":true,"offload_optimizer":false,"offload_parameters":false,"recompute":"full","strategy":"extreme"})");
  EXPECT_EQ(
      memory(R"({"strategy":"extreme","cut":false,"every":2,"directory":"/scratch"})"),
      R"({"cut":false,"directory":"/scratch","every":2,"offload":true,"offload_optimizer":false,"offload_parameters":false,"recompute":"full","strategy":"extreme"})");
  EXPECT_EQ(
      memory(R"({"strategy":"extreme","recompute":"selective"})"),
      R"({"cut":false,"every":1,"offload":false,"offload_optimizer":false,"offload_parameters":false,"recompute":"selective","strategy":"extreme"})");
  EXPECT_EQ(
      memory(R"({"recompute":"full"})"),
      R"({"cut":false,"every":1,"offload":false,"offload_optimizer":false,"offload_parameters":false,"recompute":"full","strategy":"basic"})");
  EXPECT_EQ(memory(R"({"offload_optimizer":true,"directory":"/scratch"})"),
            R"({"cut":false,"directory":"/scratch","every":1,"offload":false,"offload_optimizer":true,)"
            R"("offload_parameters":false,"recompute":"none","strategy":"basic"})");
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
  EXPECT_THAT(refusal({R"(/memory={"recompute":"full","directory":"d"})"}),
              HasSubstr("/memory/directory: got \"d\" without an offload in /memory"));
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

/// The lossy run, and its records of fates and losses.
std::string records_of(const RunConfig& config) {
  const TinyResult result = train_locally(config, tiny_corpus());
  std::string text = nlohmann::json(trace_of(result)).dump();
  for (const comm::ClassStatistics& of_class : result.outcome.statistics) {
    const comm::LossCounts total = of_class.total();
    text += " " + std::to_string(of_class.digest) + " " + std::to_string(total.packets) + " " +
            std::to_string(total.lost_packets);
  }
  return text;
}

void lose_everywhere(RunConfig& config, std::string_view path, comm::Fill fill,
                     const std::shared_ptr<const sim::LossProcess>& process) {
  std::vector<TrafficClass> classes;
  if (config.parallel.tensor > 1) classes = {TrafficClass::kTpForward, TrafficClass::kTpBackward};
  if (config.parallel.data > 1) classes.push_back(TrafficClass::kDpGradient);
  if (config.parallel.pipeline > 1) {
    classes.insert(classes.end(), {TrafficClass::kPpActivation, TrafficClass::kPpGradient});
  }
  for (const TrafficClass of : classes) {
    const bool between_stages = of == TrafficClass::kPpActivation || of == TrafficClass::kPpGradient;
    comm::ClassNetwork network;
    network.payload_bytes = 64;
    if (!between_stages) network.path = path;
    comm::apply_loss(network, process);
    if (!between_stages) comm::apply_fill(network, fill);
    config.network.of(of) = network;
  }
}

struct Layout {
  int data, pipeline, tensor;
};

// Every policy; every path, fill and process on the layout with all kinds of groups, and every layout on one of them.
TEST(Recomputation, ChangesNoBitOfLossyRuns) {
  const auto bernoulli = std::make_shared<sim::Bernoulli>(0.05);
  const auto bursts = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.05, 8));
  struct Case {
    Layout layout;
    std::string path;
    comm::Fill fill;
    std::shared_ptr<const sim::LossProcess> process;
  };
  std::vector<Case> cases;
  for (const char* path : {"contribution", "direct", "ring", "halving_doubling", "tree"}) {
    cases.push_back({{2, 2, 2}, path, comm::Fill::kZero, bursts});
  }
  for (const comm::Fill fill : {comm::Fill::kCountRescale, comm::Fill::kStale, comm::Fill::kOwn}) {
    cases.push_back({{1, 1, 4}, "direct", fill, bernoulli});
  }
  for (const Layout& layout : {Layout{1, 1, 8}, Layout{2, 1, 4}, Layout{1, 4, 2}, Layout{8, 1, 1}, Layout{1, 2, 1}}) {
    cases.push_back({layout, "direct", comm::Fill::kZero, bernoulli});
  }
  for (const Case& item : cases) {
    RunConfig config = tiny_config();
    config.model.layers = 4;
    config.model.heads = 8;
    config.training.steps = 3;
    config.training.batch_sequences = 2;
    config.training.accumulation = item.layout.pipeline > 1 ? 2 : 1;
    config.record.every_steps = 1;
    config.parallel.data = item.layout.data;
    config.parallel.pipeline = item.layout.pipeline;
    config.parallel.tensor = item.layout.tensor;
    lose_everywhere(config, item.path, item.fill, item.process);
    SCOPED_TRACE(config.parallel.text() + " " + item.path);
    const std::string want = records_of(config);
    for (const auto& [recompute, every, offloads] :
         {std::tuple(Recompute::kSelective, 1, false), std::tuple(Recompute::kBlock, 1, false),
          std::tuple(Recompute::kBlock, 2, true)}) {
      config.memory.recompute = recompute;
      config.memory.every = every;
      config.memory.place.offloaded = offloads;
      EXPECT_EQ(records_of(config), want) << static_cast<int>(recompute) << " " << every << " " << offloads;
    }
    config.memory = {};
    config.memory.recompute = Recompute::kBlock;
    config.memory.place.cut = true;
    if (config.parallel.tensor > 1 && why_ranks_differ(config).empty()) {
      EXPECT_EQ(records_of(config), want) << "cut";
    }
  }
}

TEST(Recomputation, ChangesNoBitWhereRanksCutEqualActivations) {
  for (const bool offloads : {false, true}) {
    RunConfig config = tiny_config();
    config.model.layers = 3;
    config.parallel.tensor = 4;
    lose_everywhere(config, "contribution", comm::Fill::kZero, std::make_shared<sim::Bernoulli>(0.05));
    ASSERT_EQ(why_ranks_differ(config), "");
    const std::string want = records_of(config);
    config.memory.recompute = Recompute::kBlock;
    config.memory.place = {true, offloads};
    EXPECT_EQ(records_of(config), want);
  }
}

TEST(MemoryEstimate, OfTheModelIsTheMemoryThatItTakes) {
  for (const Layout& layout : {Layout{1, 1, 1}, Layout{2, 1, 2}, Layout{1, 2, 2}}) {
    for (const MemoryStrategy& strategy : kMemoryStrategies) {
      RunConfig config = tiny_config();
      config.model.layers = 4;
      config.parallel.data = layout.data;
      config.parallel.pipeline = layout.pipeline;
      config.parallel.tensor = layout.tensor;
      config.training.steps = 1;
      config.training.accumulation = 2;
      config.memory = memory_of_strategy(strategy, config);
      SCOPED_TRACE(config.parallel.text() + " " + std::string(strategy.name));
      const MemoryEstimate want = estimate_memory(config);
      MemoryPeak most;
      for (const TrainingOutcome& outcome : train_locally(config, tiny_corpus()).by_rank) {
        MemoryPeak total;
        for (const auto& [kind, peak] : outcome.memory.of_model) total.bytes += peak.bytes;
        most.bytes = std::max(most.bytes, total.bytes);
      }
      EXPECT_EQ(most.bytes, want.model.total() + want.collectives + want.loss_layer);
    }
  }
}

TEST(MemoryEstimate, FindsTheLargestMicroBatch) {
  RunConfig config = tiny_config();
  config.training.batch_sequences = 7;
  const std::uint64_t seven = estimate_memory(config).of_process;
  EXPECT_EQ(largest_micro_batch(config, seven), 7);
  EXPECT_EQ(largest_micro_batch(config, seven - 1), 6);
  EXPECT_EQ(largest_micro_batch(config, 1000), 0);
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

TEST(MemoryEstimate, ReadsSizes) {
  EXPECT_EQ(bytes_from_text("24GiB", "--memory"), std::uint64_t{24} << 30U);
  EXPECT_EQ(bytes_from_text("1.5 MB", "--memory"), 1500000U);
  EXPECT_EQ(bytes_from_text("77", "--memory"), 77U);
  for (const char* wrong : {"", "GiB", "-1", "3 apples", "1e30GiB"}) {
    EXPECT_THROW(bytes_from_text(wrong, "--memory"), ConfigError) << wrong;
  }
}

TEST(MemoryRecord, HasTheStepAtWhichAPeakWasReached) {
  MemoryRecord record;
  record.note("activations", 5, 0);
  record.note("activations", 9, 1);
  record.note("activations", 9, 2);
  record.note("activations", 7, 3);
  record.note_process(4);
  const nlohmann::json json = to_json(record);
  EXPECT_EQ(json["model"].dump(), R"({"activations":{"bytes":9,"step":1}})");
  EXPECT_EQ(json["process"]["step"], 4);
  EXPECT_GT(json["process"]["bytes"].get<std::uint64_t>(), std::uint64_t{1} << 20U);
}

}  // namespace
}  // namespace droptest::experiments
