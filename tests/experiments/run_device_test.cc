// SPDX-License-Identifier: Apache-2.0
// How many runs fit into a device's memory, on the fake device.
#include "experiments/training/run_device.h"
#include "comm/allowed_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "comm/device/device_buffer.h"
#include "experiments/training/layer_memory.h"
#include "experiments/training/memory_estimate.h"
#include "experiments/training/rank_usage.h"
#include "experiments/training/training_model.h"
#include "models/gpt2/parameter_table.h"
#include "models/gpt2/shard_plan.h"
#include "sim/error.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/tiny_run.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace droptest::experiments::run_device_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kMebi = std::uint64_t{1} << 20U;
// What a plan adds for a process and a rank.
constexpr std::uint64_t kContext = 600'000'000;
constexpr std::uint64_t kRank = 64'000'000;

RunConfig run_on_cuda(int ranks) {
  RunConfig config = tiny_config();
  config.device = Device::kCuda;
  config.parallel.tensor = ranks;
  config.training.steps = 2;
  return config;
}

/// A device with that much memory, which may be more than the machine has, because it is not used.
fake_cuda::Settings memory_of(std::uint64_t bytes) {
  fake_cuda::Settings settings;
  settings.memory_bytes = bytes;
  return settings;
}

// Issue 15: a sweep started up to 8 runs at once whatever the memory of the card.
TEST(RunsThatFit, AreAsManyAsTheFreeMemoryHolds) {
  const RunConfig config = run_on_cuda(2);
  const std::uint64_t one = run_device_bytes(config);
  {
    const fake_cuda::Scope scope(memory_of(3 * one));
    EXPECT_EQ(runs_that_fit(config), 3);
    const comm::DeviceMemory others(kMebi, "another program");
    EXPECT_EQ(runs_that_fit(config), 2);
  }
  const fake_cuda::Scope scope(memory_of(one));
  EXPECT_EQ(runs_that_fit(config), 1);
}

TEST(RunsThatFit, TheLargestRunOnADeviceDecides) {
  std::vector<PlannedRun> runs(5);
  runs[0].run.config = tiny_config();  // a run on the CPU
  runs[0].run.config.training.batch_sequences = 9999;
  for (std::size_t i = 1; i < runs.size(); ++i) runs[i].run.config = run_on_cuda(2);
  runs[2].run.config.training.batch_sequences = 64;
  runs[3].run.config.seeds = {9, 9, 9};
  runs[4].run.config.training.batch_sequences = 63;
  const fake_cuda::Scope scope;
  EXPECT_EQ(&most_demanding(runs), &runs[2].run.config);
  EXPECT_EQ(&most_demanding(std::span(runs).first(1)), &runs[0].run.config);
}

TEST(RunsThatFit, ASweepStartsNoMoreAtOnce) {
  const RunConfig config = run_on_cuda(2);
  const int cores = static_cast<int>(comm::allowed_cores().size());
  const std::uint64_t one = run_device_bytes(config);
  {
    const fake_cuda::Scope scope(memory_of(one + one / 2));
    EXPECT_EQ(jobs_at_once(0, config), 1);
    EXPECT_EQ(jobs_at_once(5, config), 5) << "who asks for a number gets it";
    EXPECT_EQ(jobs_at_once(0, tiny_config()), cores) << "of runs on the CPU";
  }
  {
    const fake_cuda::Scope scope(memory_of(100 * one));
    EXPECT_EQ(jobs_at_once(0, config), std::min(cores, 8));
  }
  const fake_cuda::Scope scope(memory_of(one / 2));
  EXPECT_THROW(jobs_at_once(0, config), ConfigError);
  EXPECT_THROW(jobs_at_once(5, config), ConfigError);
}

TEST(RunsThatFit, AttentionByCudnnTakesItsWorkspaceAndAMargin) {
  RunConfig config = run_on_cuda(1);
  config.training.precision.compute = models::Precision::kBfloat16;
  config.training.sequence_tokens = 8;
  RunConfig flash = config;
  flash.kernels["attention"] = {"flash"};
  const std::uint64_t more = run_device_bytes(config) - run_device_bytes(flash);
  // The workspaces of both passes may share memory with other buffers of a step.
  EXPECT_GE(more, 250'000'000U);
  EXPECT_LE(more, 250'000'000U + 3 * kMebi + 4 * 4 * 128 * (2 * 128 + 4 * 8 + 8));
}

TEST(RunsThatFit, ARunThatDoesNotFitIsRefusedWithBothSizes) {
  const RunConfig config = run_on_cuda(1);
  const fake_cuda::Scope scope(memory_of(run_device_bytes(config) - 1));
  EXPECT_THAT(config_error_of([&] { runs_that_fit(config); }),
              AllOf(HasSubstr("a run takes about 0.6 GiB"), HasSubstr("device 0 has 0.6 GiB free"),
                    HasSubstr("/training/batch_sequences")));
}

TEST(RunsThatFit, RanksOfNcclHaveADeviceEach) {
  RunConfig config = run_on_cuda(2);
  const std::uint64_t on_one = run_device_bytes(config);
  config.backend.name = "nccl";
  EXPECT_LT(run_device_bytes(config), on_one - kRank);
  fake_cuda::Settings settings = memory_of(4 * run_device_bytes(config));
  settings.devices = 2;
  const fake_cuda::Scope scope(settings);
  EXPECT_EQ(runs_that_fit(config), 4);
}

TEST(RunsThatFit, MemoryOfARunIsThatOfItsModelBatchAndMessages) {
  const std::uint64_t one = run_device_bytes(run_on_cuda(2));
  RunConfig larger = run_on_cuda(2);
  larger.training.batch_sequences *= 1000;
  // Two ranks with 64,000 tokens: only the residual stream of 32 floats is in memory six times.
  EXPECT_GT(run_device_bytes(larger), one + std::uint64_t{2} * 64000 * 32 * 4 * 6);
  const std::uint64_t message = std::uint64_t{64000} * 32 * 4;
  RunConfig stale = larger;
  lose(stale, sim::TrafficClass::kTpForward, 0.1);
  EXPECT_EQ(run_device_bytes(stale), run_device_bytes(larger));
  stale.network.of(sim::TrafficClass::kTpForward)->gather.fill = comm::Fill::kStale;
  EXPECT_EQ(run_device_bytes(stale), run_device_bytes(larger) + 2 * 3 * message);  // wte and two layers, for each rank
  stale.network.of(sim::TrafficClass::kTpForward)->reduce.fill = comm::Fill::kStale;
  stale.network.of(sim::TrafficClass::kTpForward)->path = "contribution";
  EXPECT_EQ(run_device_bytes(stale), run_device_bytes(larger) + 2 * 3 * 2 * message);  // an input and a result
}

/// Bytes of the models of a run's ranks: without the allowances.
std::uint64_t model_bytes(const RunConfig& config) {
  const auto ranks = static_cast<std::uint64_t>(config.parallel.world_size());
  return run_device_bytes(config) - kContext -
         ranks *
             (kRank + layer_memory(config).remembered + layer_memory(config).messages + message_buffer_bytes(config));
}

RunConfig run_with_attention_state(const models::SequenceLayout& layout, models::AttentionOptions::Within within) {
  RunConfig config = run_on_cuda(1);
  config.parallel.sequence = layout.ranks();
  config.model.attention.sequence = layout;
  config.model.attention.within = within;
  if (within == models::AttentionOptions::Within::kDocument) config.data.end_of_text = 1;
  return config;
}

/// The bytes of the models of the run's ranks after a step and an evaluation.
std::uint64_t measured_bytes(const RunConfig& config) {
  std::atomic<std::uint64_t> bytes = 0;
  comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(60), [&](comm::Communicator& group) {
    const std::unique_ptr<comm::Communicator> alone = group.split(group.rank(), 0);
    models::ModelRanks ranks;
    ranks.all = &group;
    if (group.world_size() > 1) {
      ranks.sequence = {&group, 1};
      ranks.data = {&group, config.sharding};
    }
    TrainingModel model(config, *alone, ranks);
    set_starting_weights(model, config, *alone);
    Batch batch;
    batch.sequences = config.training.batch_sequences;
    batch.length = config.training.sequence_tokens;
    for (int i = 0; i < batch.sequences * batch.length; ++i) batch.tokens.push_back(i % 5);
    batch.targets = batch.tokens;
    model.evaluate(batch);
    model.take_step(std::span(&batch, 1), 0.01);
    bytes += model.memory_use().total();
  });
  return bytes;
}

TEST(RunsThatFit, SequenceRanksTakeTheMemoryOfTheirTokensAndStates) {
  using Within = models::AttentionOptions::Within;
  const auto expect_measured = [](const models::SequenceLayout& layout, Within within, int length) {
    const fake_cuda::Scope scope;
    RunConfig config = run_with_attention_state(layout, within);
    config.training.sequence_tokens = length;
    config.sharding.zero = layout.ranks() > 1 ? 1 : 0;
    EXPECT_EQ(model_bytes(config), measured_bytes(config)) << layout.ranks() << " ranks, " << length << " tokens";
  };
  expect_measured({}, Within::kDocument, 13);
  expect_measured({{1, 2}}, Within::kSequence, 14);
  expect_measured({{2, 1}}, Within::kDocument, 13);
}

TEST(RunsThatFit, TheRunWithAttentionStateIsMoreDemanding) {
  using Within = models::AttentionOptions::Within;
  std::vector<PlannedRun> runs(3);
  runs[0].run.config = run_with_attention_state({{1, 2}}, Within::kSequence);
  runs[1].run.config = run_with_attention_state({{1, 2}}, Within::kDocument);
  runs[2].run.config = run_with_attention_state({{2, 1}}, Within::kSequence);
  const fake_cuda::Scope scope;
  EXPECT_EQ(&most_demanding(runs), &runs[1].run.config);
}

// Gradients of sublayer outputs before dropout have a separate buffer.
TEST(RunsThatFit, AttentionInChunksAndDropoutTakeTheMemoryThatIsPlanned) {
  const fake_cuda::Scope scope;
  for (const std::int64_t chunk : {0, 3, 4, 64}) {
    for (const double dropout : {0.0, 0.1}) {
      RunConfig config = run_with_attention_state({}, models::AttentionOptions::Within::kDocument);
      config.model.attention.chunk_tokens = chunk;
      config.model.dropout = {dropout, dropout, dropout, 1};
      EXPECT_EQ(measured_bytes(config), model_bytes(config)) << "chunks of " << chunk << ", dropout " << dropout;
    }
  }
  std::vector<PlannedRun> runs(4);
  for (PlannedRun& planned : runs) {
    planned.run.config = run_on_cuda(1);
    planned.run.config.training.batch_sequences = 64;
    planned.run.config.model.attention.chunk_tokens = 2;
  }
  runs[1].run.config.model.attention.chunk_tokens = 3;
  runs[2].run.config.model.dropout.residual = 0.1;
  runs[3].run.config.model.attention.chunk_tokens = 3;
  runs[3].run.config.model.dropout.residual = 0.1;
  EXPECT_EQ(&most_demanding(std::span(runs).first(2)), &runs[1].run.config);
  EXPECT_EQ(&most_demanding(std::span(runs).first(3)), &runs[2].run.config);
  EXPECT_EQ(&most_demanding(runs), &runs[3].run.config);
}

TEST(RunsThatFit, OuterStepsAreInHostMemory) {
  RunConfig config = run_on_cuda(1);
  config.parallel.data = 2;
  config.outer.every_steps = 2;
  config.outer.optimizer = models::OuterOptimizer::kAverage;
  const std::uint64_t average = run_device_bytes(config);
  const std::uint64_t total = estimate_memory(config).total();
  config.outer.optimizer = models::OuterOptimizer::kNesterov;
  lose(config, sim::TrafficClass::kOuter, 0.1);
  config.network.of(sim::TrafficClass::kOuter)->path = "contribution";
  config.network.of(sim::TrafficClass::kOuter)->gather.fill = comm::Fill::kStale;
  EXPECT_GT(estimate_memory(config).total(), total);
  EXPECT_EQ(run_device_bytes(config), average);
}

TEST(RunsThatFit, MessagesOfReplicasAreAsLargeAsTheLargestBucket) {
  constexpr std::uint64_t kMessages = 3;
  const auto bytes = [](int zero, std::uint64_t bucket_bytes, std::uint64_t gather_bucket_bytes) {
    RunConfig config = run_on_cuda(1);
    config.parallel.data = 2;
    config.backend.name = "nccl";  // one rank on the device
    config.sharding.zero = zero;
    config.sharding.bucket_bytes = config.sharding.first_bucket_bytes = bucket_bytes;
    config.sharding.gather_bucket_bytes = gather_bucket_bytes;
    return run_device_bytes(config);
  };
  const models::ParameterTable table(models::gpt2_tensors(run_on_cuda(1).model, 1, 0));
  const std::uint64_t all = table.trained_elems * sizeof(float);
  const std::uint64_t chunk = std::uint64_t{4} * 32 * 32 * sizeof(float);  // the largest tensor: no bucket divides it
  EXPECT_EQ(bytes(0, kMebi, 1) - bytes(0, 1, 1), kMessages * (all - chunk));
  EXPECT_EQ(bytes(0, 1, 1), bytes(0, 1, kMebi));
  // Buckets of zero 3 have the size of a gather.
  EXPECT_EQ(bytes(3, 1, kMebi), bytes(3, kMebi, kMebi));
  EXPECT_EQ(bytes(3, 1, 1), bytes(3, kMebi, 1));
}

TEST(RunsThatFit, StaleContributionsOfSmallBucketsAreKeptOnTheirOwnPath) {
  RunConfig config = run_on_cuda(1);
  config.parallel.data = 2;
  config.sharding.bucket_bytes = 1U << 20U;
  config.sharding.first_bucket_bytes = 1;
  lose(config, sim::TrafficClass::kDpGradient, 0.1);
  comm::ClassNetwork& network = *config.network.of(sim::TrafficClass::kDpGradient);
  network.reduce.fill = comm::Fill::kStale;
  const models::ParameterTable table(models::gpt2_tensors(config.model, 1, 0));
  const models::ShardPlan plan(table, sizeof(float), config.sharding, 2, 0);
  ASSERT_EQ(plan.buckets().size(), 2U);
  const std::uint64_t first = plan.buckets()[0].count;
  const std::uint64_t second = plan.buckets()[1].count;
  // An owner remembers its part of each rank's contribution, and a rank its own contribution to an aggregation.
  const auto direct = [](std::uint64_t elems) { return 2 * ((elems + 1) / 2) * sizeof(float); };
  const auto aggregated = [](std::uint64_t elems) { return elems * sizeof(float); };
  EXPECT_EQ(layer_memory(config).remembered, direct(first) + direct(second));
  network.sized_paths = {{first, "ring"}};
  EXPECT_EQ(layer_memory(config).remembered, (first + 1) / 2 * sizeof(float) + direct(second));
  network.sized_paths = {{first, "direct"}};
  network.path = "contribution";
  EXPECT_EQ(layer_memory(config).remembered, direct(first) + aggregated(second));
}

TEST(DeviceMemoryUse, HasThePeakOfAllMemory) {
  const fake_cuda::Scope scope;
  const std::uint64_t before = comm::device_memory_use().bytes;
  EXPECT_EQ(before, fake_cuda::live_bytes());
  const std::uint64_t more = comm::device_memory_use().peak - before + kMebi;
  {
    comm::DeviceMemory first(more, "a test's memory");
    comm::DeviceMemory second = std::move(first);
    EXPECT_EQ(comm::device_memory_use().bytes, before + more);
    const comm::DeviceMemory third(1, "a test's memory");
  }
  EXPECT_EQ(comm::device_memory_use().bytes, before);
  EXPECT_EQ(comm::device_memory_use().peak, before + more + 1);
}

TEST(DeviceMemoryUse, OfARankIsThatOfAllProgramsWithItsOwnPeak) {
  const fake_cuda::Scope scope;
  const comm::DeviceMemory others(5 * kMebi, "another program's");
  const RankUsageMeter meter(RankUsageMeter::Scope::kThread, 0);
  const std::uint64_t before = fake_cuda::live_bytes();
  EXPECT_EQ(meter.device_peak_bytes(), before);
  { const comm::DeviceMemory passing(3 * kMebi, "a message"); }
  EXPECT_EQ(meter.device_peak_bytes(), before + 3 * kMebi);
  EXPECT_EQ(RankUsageMeter(RankUsageMeter::Scope::kThread, std::nullopt).device_peak_bytes(), std::nullopt);
}

TEST(DeviceMemoryUse, OfAbsurdModelsIsAbsurd) {
  RunConfig config = run_on_cuda(1);
  config.parallel.data = 64;
  config.training.batch_sequences = 1 << 20;
  config.model.context = config.training.sequence_tokens = 1 << 20;
  config.model.layers = 96;
  EXPECT_EQ(run_device_bytes(config), std::uint64_t{1} << 62U);
}

TEST(RunsThatFit, ARunTakesNoMoreThanWasPlanned) {
  for (const int ranks : {1, 2, 4}) {
    const fake_cuda::Scope scope;
    RunConfig config = run_on_cuda(ranks);
    config.training.batch_sequences = 64;
    for (const sim::TrafficClass c : {sim::TrafficClass::kTpForward, sim::TrafficClass::kTpBackward}) {
      lose(config, c, 0.1);
      config.network.of(c)->gather.fill = comm::Fill::kStale;
    }
    config.record.every_steps = 1;
    std::size_t most = 0;
    const Corpus corpus = tiny_corpus();
    comm::run_ranks(ranks, std::chrono::seconds(60), [&](comm::Communicator& group) {
      train(config, corpus, group, [&](const MetricsLine&) { most = std::max(most, fake_cuda::live_bytes()); });
    });
    EXPECT_GT(most, 0U);
    // The fake device needs none of the context's memory.
    EXPECT_LE(most + kContext, run_device_bytes(config)) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace droptest::experiments::run_device_test
