// SPDX-License-Identifier: Apache-2.0
// Runs whose tensor-parallel ranks cut the tokens, their difference to sequence ranks, and runs with dropout: specs,
// packets, paths, backends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/lossy/paths/path_registry.h"
#include "experiments/run/run_forecast.h"
#include "experiments/spec/dry_run.h"
#include "experiments/training/memory_estimate.h"
#include "experiments/training/trainer.h"
#include "sim/error.h"
#include "tests/experiments/layouts_of_runs.h"
#include "tests/experiments/resolved_spec.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::cut_tokens_test {
namespace {

using sim::TrafficClass;
using testing::HasSubstr;

RunConfig cut_run(int tensor) {
  RunConfig config = tiny_config();
  config.model.layers = 2;
  config.model.heads = 8;
  config.parallel.tensor = tensor;
  config.tensor_sequence = true;
  config.training.steps = 4;
  config.training.batch_sequences = 1;
  config.training.sequence_tokens = 13;  // no multiple of the ranks
  config.validation.tokens = 26;
  config.record.every_steps = 1;
  return config;
}

void lose_all(RunConfig& config, double rate, std::string_view path = "direct", comm::Fill fill = comm::Fill::kZero) {
  std::vector<TrafficClass> classes = {TrafficClass::kTpForward, TrafficClass::kTpBackward,
                                       TrafficClass::kSequenceBackward};
  if (config.parallel.data > 1) classes.push_back(TrafficClass::kDpGradient);
  if (config.parallel.pipeline > 1) {
    classes.push_back(TrafficClass::kPpActivation);
    classes.push_back(TrafficClass::kPpGradient);
  }
  for (const TrafficClass of : classes) {
    lose(config, of, rate);
    comm::ClassNetwork& network = *config.network.of(of);
    const bool between_stages = of == TrafficClass::kPpActivation || of == TrafficClass::kPpGradient;
    if (between_stages) continue;
    network.path = path;
    if (comm::path_entry(path).has_groups) network.group_ranks = 2;
    comm::apply_fill(network, fill);
    if (comm::reduce_fill_refusal(network.reduce.fill, path)) network.reduce.fill = comm::Fill::kZero;
  }
}

TEST(CutTokens, TrainAsTensorParallelismWithoutTheCut) {
  for (const int tensor : {2, 3, 4}) {
    RunConfig config = cut_run(tensor);
    const TinyResult cut = train_locally(config, tiny_corpus());
    config.tensor_sequence = false;
    expect_same_training(cut, train_locally(config, tiny_corpus()));
  }
}

TEST(CutTokens, GlooHasTheBitsOfLocalRanksWithAndWithoutLoss) {
  for (const double rate : {0.0, 0.05}) {
    RunConfig config = cut_run(3);
    if (rate > 0) lose_all(config, rate);
    const TinyResult local = train_locally(config, tiny_corpus());
    const TinyResult gloo = train_over_gloo(config, tiny_corpus());
    EXPECT_EQ(trace_of(local), trace_of(gloo));
    EXPECT_EQ(sent_packets(local), sent_packets(gloo));
  }
}

TEST(CutTokens, EveryPathAndFillLosesThePacketsThatThePlanCounts) {
  for (const std::string_view path : {"contribution", "direct", "ring", "tree", "hierarchical", "halving_doubling"}) {
    for (const comm::Fill fill : {comm::Fill::kZero, comm::Fill::kStale, comm::Fill::kCountRescale}) {
      SCOPED_TRACE(std::string(path) + ", fill " + std::to_string(static_cast<int>(fill)));
      RunConfig config = cut_run(4);
      lose_all(config, 0.05, path, fill);
      const TinyResult result = train_locally(config, tiny_corpus());
      EXPECT_EQ(sent_packets(result), expected_packets(config));
      for (const comm::ClassStatistics& statistics : result.outcome.statistics) {
        for (const comm::LossCounts& half : statistics.halves) EXPECT_GT(half.lost_packets, 0U);
      }
      EXPECT_EQ(result.outcome.statistics.size(), 3U);
      EXPECT_EQ(trace_of(result), trace_of(train_locally(config, tiny_corpus())));
    }
  }
}

TEST(CutTokens, PacketsInOtherLayoutsAreThoseOfThePlan) {
  RunConfig replicas = cut_run(2);
  replicas.parallel.data = 2;
  replicas.training.accumulation = 2;
  RunConfig sharded = replicas;
  sharded.sharding.zero = 2;
  sharded.sharding.reduce = models::ShardOptions::Reduce::kAfterEach;
  sharded.sharding.micro_batches = 2;
  RunConfig stages = cut_run(3);
  stages.parallel.pipeline = 2;
  stages.training.accumulation = 3;
  RunConfig split = stages;
  split.pipeline.schedule = models::ScheduleKind::kZeroBubble;
  RunConfig no_tokens = stages;  // fewer rows than ranks
  no_tokens.parallel.tensor = 8;
  no_tokens.training.sequence_tokens = 5;
  no_tokens.validation.tokens = 10;
  RunConfig evaluated = cut_run(2);
  evaluated.validation.network = ValidationConfig::Network::kLossy;
  evaluated.validation.tokens = 13;
  for (RunConfig config : {replicas, sharded, stages, split, no_tokens, evaluated}) {
    SCOPED_TRACE(config.parallel.text());
    lose_all(config, 0.02);
    auto expected = expected_packets(config);
    auto sent = sent_packets(train_locally(config, tiny_corpus()));
    expected.erase("parameter_gather");
    EXPECT_EQ(sent, expected);
  }
}

// The class sequence_backward has messages of each micro-batch here, not sums of a step.
TEST(SequenceRanks, PacketsOfSeveralMicroBatchesAreThoseOfThePlan) {
  for (const int stages : {1, 2}) {
    RunConfig config = cut_run(1);
    config.tensor_sequence = false;
    config.parallel.sequence = 2;
    config.parallel.pipeline = stages;
    config.model.attention.sequence = {{1, 2}};
    config.training.accumulation = 3;
    for (const TrafficClass of : {TrafficClass::kSequenceForward, TrafficClass::kSequenceBackward}) {
      lose(config, of, 0.02);
    }
    const auto expected = expected_packets(config);
    EXPECT_EQ(expected.size(), 2U);
    EXPECT_EQ(sent_packets(train_locally(config, tiny_corpus())), expected);
  }
}

// Devices send activations as they are in memory; a host has them as floats.
TEST(SequenceRanks, MessagesOf16BitsOfADeviceHaveHalfThePackets) {
  RunConfig config = cut_run(1);
  config.tensor_sequence = false;
  config.parallel.sequence = 2;
  config.model.attention.sequence = {{1, 2}};
  const auto elems = [&](Device device, models::Precision compute) {
    config.device = device;
    config.training.precision.compute = compute;
    std::uint64_t sum = 0;
    const DryRun run(config);
    for (const TrafficClass of : {TrafficClass::kSequenceForward, TrafficClass::kSequenceBackward}) {
      for (const PlannedCollective& one : run.of(of)) sum += one.counts.times * one.call.elements;
    }
    return sum;
  };
  const std::uint64_t floats = elems(Device::kCuda, models::Precision::kFloat32);
  EXPECT_EQ(elems(Device::kCuda, models::Precision::kBfloat16), floats / 2);
  EXPECT_EQ(elems(Device::kCuda, models::Precision::kFloat16), floats / 2);
  EXPECT_EQ(elems(Device::kCpu, models::Precision::kBfloat16), floats);
}

TEST(SequenceRanks, TheirBackwardClassHasNoReduceHalfAndThatOfCutTokensHasOne) {
  const RunConfig cut = resolved(kTwoRanks, {"/parallel/tensor_sequence=true"}).config;
  EXPECT_NE(cut.network.of(TrafficClass::kSequenceBackward)->reduce.loss, nullptr);
  const RunConfig ranks = resolved(kTwoRanks, {"/parallel/sequence=2"}).config;
  EXPECT_EQ(ranks.network.of(TrafficClass::kSequenceBackward)->reduce.loss, nullptr);
  EXPECT_NE(ranks.network.of(TrafficClass::kSequenceBackward)->gather.loss, nullptr);
}

// A rank of two sends half of the tokens to the next stage.
TEST(CutTokens, StagesSendTheirOwnTokensAlone) {
  RunConfig config = cut_run(2);
  config.parallel.pipeline = 2;
  config.training.sequence_tokens = 16;
  lose_all(config, 0.01);
  const auto cut = expected_packets(config);
  config.tensor_sequence = false;
  const auto whole = expected_packets(config);
  EXPECT_EQ(2 * cut.at("pp_activation"), whole.at("pp_activation"));
  EXPECT_EQ(2 * cut.at("pp_gradient"), whole.at("pp_gradient"));
}

TEST(CutTokens, APlanShowsSmallerSlots) {
  RunConfig config = cut_run(4);
  config.training.sequence_tokens = 16;
  const std::uint64_t cut = estimate_memory(config).slot;
  config.tensor_sequence = false;
  EXPECT_LT(cut, estimate_memory(config).slot);
}

TEST(CutTokens, APlanOffersTheStrategiesThatARunCanHave) {
  const auto strategies = [](const RunConfig& config) {
    const nlohmann::json plan = memory_plan_json(config, std::nullopt);
    std::vector<std::string> names;
    for (const auto& [name, strategy] : plan.at("strategies").items()) names.push_back(name);
    return names;
  };
  EXPECT_THAT(strategies(cut_run(2)), testing::Contains("aggressive"));
  RunConfig config = cut_run(2);
  lose_all(config, 0.05);
  EXPECT_THAT(strategies(config), testing::Not(testing::Contains("aggressive")));
}

std::string error_of(const std::vector<std::string>& overrides) {
  try {
    (void)resolved(kTwoRanks, overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CutTokens, SpecsThatCannotBeAreRefused) {
  EXPECT_EQ(error_of({"/parallel/tensor_sequence=true"}), "no error");
  EXPECT_THAT(error_of({"/parallel/tensor=1", "/parallel/tensor_sequence=true", "/network=null"}),
              HasSubstr("/parallel/tensor_sequence: got true with /parallel/tensor 1, want several"));
  EXPECT_THAT(
      error_of({"/parallel/tensor_sequence=true", "/network/gather/fill=own"}),
      HasSubstr("/network/gather/fill: got \"own\", want \"zero\" or \"stale\" with /parallel/tensor_sequence"));
  const std::string half = R"(/training/precision={"compute": "float16"})";
  EXPECT_THAT(error_of({"/parallel/tensor_sequence=true", "/network/gather/fill=stale", half}),
              HasSubstr("/network/gather/fill: got \"stale\" with a dynamic /training/loss_scale"));
  EXPECT_EQ(error_of({"/parallel/tensor_sequence=true", "/network/gather/fill=stale", half,
                      R"(/training/loss_scale={"kind": "static", "initial": 1024})"}),
            "no error");
  EXPECT_THAT(
      error_of({"/parallel/tensor_sequence=true", "/network=null", R"(/memory={"recompute": "full", "cut": true})"}),
      HasSubstr("/memory/cut: got true with /parallel/tensor_sequence true"));
  EXPECT_THAT(error_of({"/parallel/tensor_sequence=true", R"(/memory={"recompute": "full"})"}),
              HasSubstr("/memory/recompute: got \"full\" with /parallel/tensor_sequence true"));
  // Selective recomputation needs the inputs only on a device, which computes GELU from them.
  const std::string selective = R"(/memory={"recompute": "selective"})";
  EXPECT_EQ(error_of({"/parallel/tensor_sequence=true", selective}), "no error");
  EXPECT_THAT(
      error_of({"/parallel/tensor_sequence=true", selective, "/device=cuda"}),
      testing::AllOf(HasSubstr("/memory/recompute: got \"selective\" on a GPU with /parallel/tensor_sequence true"),
                     HasSubstr("want \"none\", or no loss in that half")));
  EXPECT_EQ(error_of({"/parallel/tensor_sequence=true", selective, "/device=cuda", "/network=null"}), "no error");
  EXPECT_THAT(error_of({"/parallel/tensor_sequence=true", "/parallel/sequence=2"}),
              HasSubstr("/parallel/tensor_sequence: got true with /parallel/sequence 2, want one of the two"));
  EXPECT_THAT(error_of({"/parallel/data=2", "/parallel/sequence=2", R"(/outer={"every_steps": 2})"}),
              HasSubstr("/parallel/sequence: got 2 with /outer, want 1"));
  EXPECT_THAT(error_of({"/parallel/sequence=2", "/kernels/attention=reference"}),
              HasSubstr("/kernels/attention: got \"reference\" with attention over sequence ranks"));
  EXPECT_EQ(error_of({"/parallel/tensor_sequence=true", R"(/memory={"recompute": "selective"})"}), "no error");
  EXPECT_EQ(error_of({"/parallel/tensor_sequence=true", "/network=null", "/memory=aggressive"}), "no error");
}

// A receiver has no own values for other ranks' tokens; sums of cut tokens have the rank's contribution.
TEST(SequenceRanks, TheFillOwnIsRefused) {
  for (const std::string of : {"sequence_forward", "sequence_backward"}) {
    for (const std::string fill : {"own", "own_scaled"}) {
      const std::string section = R"(/network/classes={")" + of + R"(": {"gather": {"fill": ")" + fill + R"("}}})";
      EXPECT_THAT(error_of({"/parallel/sequence=2", section}),
                  HasSubstr("/network/classes/" + of + "/gather/fill: got \"" + fill +
                            "\", which has no meaning in this half, want one of \"zero\", \"stale\""));
      if (of == "sequence_backward") {
        EXPECT_EQ(error_of({"/parallel/tensor_sequence=true", section}), "no error");
      }
    }
  }
  const RunConfig all = resolved(kTwoRanks, {"/parallel/sequence=2", "/network/fill=own"}).config;
  EXPECT_EQ(all.network.of(TrafficClass::kSequenceForward)->gather.fill, comm::Fill::kZero);
  EXPECT_EQ(all.network.of(TrafficClass::kSequenceBackward)->gather.fill, comm::Fill::kZero);
  EXPECT_EQ(all.network.of(TrafficClass::kTpForward)->gather.fill, comm::Fill::kOwn);
}

TEST(CutTokens, ARunIdKnowsTheCutWhereThereIsOne) {
  EXPECT_EQ(id_with({"/parallel/tensor_sequence=false"}), id_with({}));
  EXPECT_NE(id_with({"/parallel/tensor_sequence=true"}), id_with({}));
  const ResolvedRun run = resolved(kTwoRanks, {"/parallel/tensor_sequence=true"});
  EXPECT_TRUE(run.config.tensor_sequence);
  EXPECT_TRUE(run.config.network.of(TrafficClass::kSequenceBackward));
  EXPECT_EQ(resolve(run.spec, "s").run_id, run.run_id);
}

TEST(DropoutSpec, ANumberMeansAllThreePlacesAndZeroMeansNone) {
  EXPECT_EQ(id_with({"/training/dropout=0"}), id_with({}));
  EXPECT_EQ(id_with({R"(/training/dropout={"attention": 0})"}), id_with({}));
  EXPECT_NE(id_with({"/training/dropout=0.1"}), id_with({}));
  EXPECT_EQ(id_with({"/training/dropout=0.1"}),
            id_with({R"(/training/dropout={"attention": 0.1, "residual": 0.1, "embedding": 0.1})"}));
  const models::DropoutConfig dropout =
      resolved(kTwoRanks, {R"(/training/dropout={"attention": 0.1, "embedding": 0.3})"}).config.model.dropout;
  EXPECT_EQ(dropout.attention, 0.1);
  EXPECT_EQ(dropout.residual, 0);
  EXPECT_EQ(dropout.embedding, 0.3);
  EXPECT_THAT(error_of({"/training/dropout=1"}), HasSubstr("/training/dropout"));
  EXPECT_THAT(error_of({R"(/training/dropout={"residual": -0.1})"}), HasSubstr("/training/dropout/residual"));
  EXPECT_THAT(error_of({R"(/training/dropout={"attn": 0.1})"}), HasSubstr("/training/dropout/attn"));
  EXPECT_EQ(error_of({"/training/dropout=0.1", "/parallel/sequence=2"}), "no error");
  // A resolved spec resolves to itself.
  const ResolvedRun run = resolved(kTwoRanks, {"/training/dropout=0.2"});
  EXPECT_EQ(resolve(run.spec, "s").run_id, run.run_id);
}

// One layer of masks in all layouts: the same batches, the same losses to rounding.
TEST(DropoutSpec, LayoutsTrainTheSameModel) {
  RunConfig one = tiny_config();
  one.parallel.tensor = 1;
  one.model.dropout = {0.2, 0.2, 0.2};
  one.record.every_steps = 1;
  const TinyResult want = train_locally(one, tiny_corpus());
  RunConfig tensor = one;
  tensor.parallel.tensor = 2;
  RunConfig replicas = one;
  replicas.parallel.data = 2;
  replicas.training.batch_sequences = 2;
  RunConfig accumulated = one;
  accumulated.training.batch_sequences = 2;
  accumulated.training.accumulation = 2;
  for (const RunConfig& config : {tensor, replicas, accumulated}) {
    expect_same_training(train_locally(config, tiny_corpus()), want);
  }
  RunConfig other = one;
  other.model.dropout = {};
  EXPECT_NE(trace_of(train_locally(other, tiny_corpus())), trace_of(want));
}

TEST(DropoutSpec, SequenceRanksTrainTheModelOfOneRank) {
  RunConfig one = tiny_config();
  one.parallel.tensor = 1;
  one.model.dropout = {0.2, 0.2, 0.2};
  one.record.every_steps = 1;
  const TinyResult want = train_locally(one, tiny_corpus());
  for (const auto order : {models::SequenceLayout::Order::kConsecutive, models::SequenceLayout::Order::kZigzag}) {
    RunConfig config = one;
    config.parallel.sequence = 2;
    config.model.attention.sequence = {{1, 2}, order};
    expect_same_training(train_locally(config, tiny_corpus()), want);
  }
}

}  // namespace
}  // namespace droptest::experiments::cut_tokens_test
