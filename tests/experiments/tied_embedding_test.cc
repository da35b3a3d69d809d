// SPDX-License-Identifier: Apache-2.0
// The tied embedding of a pipeline's run: one stage owns it, and the other one has its values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/parallel_layout.h"
#include "comm/run_ranks.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/checkpoint/restore.h"
#include "experiments/training/single_rank.h"
#include "experiments/training/trainer.h"
#include "experiments/training/validation.h"
#include "models/gpt2/gpt2_tensors.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::tied_embedding_test {
namespace {

using models::kTiedTensor;
using sim::TrafficClass;
using Floats = std::vector<float>;

RunConfig pipeline(int data = 1, int tensor = 1) {
  RunConfig config = tiny_config();
  config.model.layers = 4;
  config.parallel.tensor = tensor;
  config.parallel.data = data;
  config.parallel.pipeline = 2;
  config.training.accumulation = 2;
  config.training.batch_sequences = 2;
  config.record.every_steps = 1;
  config.record.sample_every_steps = 1;
  config.record.weights = RecordConfig::Weights::kFinal;
  return config;
}

/// Messages of the tied embedding are compared with their owner's values, and lose nothing.
RunConfig observed(RunConfig config) {
  auto& network = config.network.of(TrafficClass::kEmbeddingGradient);
  if (!network) network.emplace();
  network->gather.fill = comm::Fill::kOwn;
  return config;
}

/// Loss of one half of embedding_gradient.
RunConfig with_loss(RunConfig config, sim::Half half, double rate, comm::Fill gather_fill = comm::Fill::kOwn) {
  lose(config, TrafficClass::kEmbeddingGradient, rate);
  comm::ClassNetwork& network = *config.network.of(TrafficClass::kEmbeddingGradient);
  (half == sim::Half::kReduce ? network.gather : network.reduce).loss = nullptr;
  network.gather.fill = gather_fill;
  return config;
}

double loss_of_weights(const RunConfig& config, const models::StoredTensors& weights) {
  RunConfig alone = config;
  alone.parallel = comm::ParallelLayout({1, 1, 1, 1});
  alone.network = {};
  const auto data = validation_data(config, tiny_corpus());
  return evaluate_on_one_rank(alone, weights, "weights", *data, models::EvaluationDetail::kLoss, 1).mean_loss;
}

void expect_loss_of_weights(const RunConfig& config, const char* what) {
  const TinyResult run = train_locally(config, tiny_corpus());
  EXPECT_NEAR(loss_of_weights(config, run.outcome.weights), run.outcome.validation_final_loss.value(), 1e-5) << what;
  ASSERT_TRUE(run.lines.back().divergence.has_value());
  EXPECT_EQ(run.lines.back().divergence->max, 0) << what;
}

TEST(TiedEmbeddingRun, WeightsHaveTheValidationLossOfTheirRunWhereCopiesAreEqual) {
  for (const auto& [data, tensor] : {std::pair(2, 1), std::pair(2, 2)}) {
    for (const int zero : {0, 1}) {
      SCOPED_TRACE("tensor " + std::to_string(tensor) + " zero " + std::to_string(zero));
      RunConfig config = observed(pipeline(data, tensor));
      config.sharding.zero = zero;
      config.sharding.bucket_bytes = 8192;
      expect_loss_of_weights(config, "lossless");

      expect_loss_of_weights(with_loss(config, sim::Half::kReduce, 0.2), "loss of gradients of the embedding");
      // Tensor-parallel ranks reduce replicated tensors over separate links.
      if (tensor > 1) continue;

      RunConfig compressed = config;
      compressed.network.of(TrafficClass::kDpGradient).emplace().compression.kind = comm::CompressionKind::kInt4;
      expect_loss_of_weights(compressed, "int4");

      // All replicas get the same gradients.
      RunConfig shared = config;
      lose(shared, TrafficClass::kDpGradient, 0.1);
      shared.network.of(TrafficClass::kDpGradient)->consistency = comm::Consistency::kShared;
      expect_loss_of_weights(shared, "loss with shared fates");
    }
  }
}

TEST(TiedEmbeddingRun, WeightsHaveTheValidationLossOfTheirRunInEachSchedule) {
  for (const auto& [schedule, chunks] :
       {std::pair(models::ScheduleKind::kGpipe, 1), std::pair(models::ScheduleKind::kInterleaved, 2),
        std::pair(models::ScheduleKind::kZeroBubble, 2)}) {
    RunConfig config = with_loss(pipeline(2), sim::Half::kReduce, 0.2);
    config.pipeline.schedule = schedule;
    config.pipeline.chunks = chunks;
    config.network.of(TrafficClass::kDpGradient).emplace().compression.kind = comm::CompressionKind::kInt4;
    expect_loss_of_weights(config, "schedule");
  }
}

TEST(TiedEmbeddingRun, WeightsHaveTheValidationLossOfTheirRunAfterAnOuterStep) {
  RunConfig config = observed(pipeline(2));
  config.outer.every_steps = 3;  // the last step is one: workers are equal behind it
  expect_loss_of_weights(config, "outer steps");
}

TEST(TiedEmbeddingRun, ACopyThatLostValuesIsPartOfTheDivergence) {
  const TinyResult run = train_locally(with_loss(pipeline(), sim::Half::kGather, 0.3), tiny_corpus());
  EXPECT_EQ(run.lines.front().divergence, std::nullopt);
  for (const MetricsLine& line : run.lines) {
    if (line.step == 0) continue;
    EXPECT_GT(line.divergence.value().max, 0) << line.step;
    EXPECT_GT(line.divergence_groups.at("embedding").rms, 0);
    EXPECT_EQ(line.divergence_groups.size(), 1U) << "one replica has nothing else twice";
  }
}

// The starting weights arrive for certain, so that the last value that arrived is the one in memory.
TEST(TiedEmbeddingRun, StaleValuesAreThoseThatTheCopyHas) {
  for (const double rate : {0.3, 1.0}) {
    const auto trace = [&](comm::Fill fill) {
      return trace_of(train_locally(with_loss(pipeline(), sim::Half::kGather, rate, fill), tiny_corpus()));
    };
    EXPECT_EQ(trace(comm::Fill::kStale), trace(comm::Fill::kOwn)) << rate;
  }
}

TEST(TiedEmbeddingRun, TheCopyTakesNoPartInReductionsOverReplicas) {
  for (const TrafficClass of : {TrafficClass::kDpGradient, TrafficClass::kOuter}) {
    const auto bytes = [of](int stages) {
      RunConfig config = pipeline(2);
      config.parallel.pipeline = stages;
      if (of == TrafficClass::kOuter) config.outer.every_steps = 3;
      config.network.of(of).emplace().path = of == TrafficClass::kOuter ? "contribution" : "direct";
      return train_locally(config, tiny_corpus()).outcome.statistics.at(0).total().content_bytes;
    };
    EXPECT_EQ(bytes(2), bytes(1)) << "each parameter is reduced once";
    EXPECT_GT(bytes(1), 0U);
  }
}

/// Trains with checkpoints in a folder, from the newest one on.
TrainingOutcome train_in(RunConfig config, const std::string& folder, std::uint64_t every = 1) {
  config.checkpoint.emplace();
  config.checkpoint->every_steps = every;
  config.checkpoint->keep = 1000;
  config.checkpoint->writing = CheckpointConfig::Writing::kAtOnce;
  TrainingHooks hooks;
  hooks.on_checkpoint_error = [](std::uint64_t step, const std::string& error) { FAIL() << step << ": " << error; };
  hooks.checkpoints = CheckpointPlace{folder, "tiny", std::string(16, 'a'), std::string(64, '0')};
  TrainingOutcome result;
  comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(30), [&](comm::Communicator& group) {
    TrainingOutcome outcome = train(config, tiny_corpus(), group, hooks);
    if (group.rank() == 0) result = std::move(outcome);
  });
  return result;
}

Floats floats_of(const std::vector<std::byte>& bytes) {
  Floats values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// A rank's part of the tied embedding in its file.
Floats stored_tokens(const std::string& folder, std::uint64_t step, int rank, const std::string& field = "values") {
  const CheckpointFolder checkpoints(folder);
  const RankFile file = checkpoints.manifest(step).ranks.at(static_cast<std::size_t>(rank));
  const models::StoredTensors tensors = read_rank_file(checkpoints.of_step(step), file);
  const auto found = tensors.find(field + "/" + kTiedTensor);
  return found == tensors.end() ? Floats() : floats_of(found->second.bytes);
}

// Fragments with tensors of other sizes take their outer steps at other times.
TEST(TiedEmbeddingRun, TheCopyFollowsOuterStepsOfFragments) {
  RunConfig config = pipeline(2);
  config.training.steps = 7;
  config.outer.every_steps = 3;
  config.outer.fragments = 3;
  const TemporaryFolder folder;
  (void)train_in(config, folder.path());
  for (std::uint64_t step = 1; step <= 7; ++step) {
    for (const int first : {0, 2}) {
      EXPECT_EQ(stored_tokens(folder.path(), step, first), stored_tokens(folder.path(), step, first + 1)) << step;
    }
  }
}

TEST(TiedEmbeddingRun, GoesOnFromACheckpointWithTheSameBits) {
  for (const comm::Fill fill : {comm::Fill::kOwn, comm::Fill::kStale}) {
    RunConfig config = with_loss(pipeline(2), sim::Half::kGather, 0.5, fill);
    lose(config, TrafficClass::kDpGradient, 0.1);
    const TemporaryFolder folder;
    RunConfig first = config;
    first.training.steps = 5;
    (void)train_in(first, folder.path());
    const TrainingOutcome resumed = train_in(config, folder.path());
    EXPECT_EQ(resumed.resumed_at, std::vector<std::uint64_t>{5});
    const TrainingOutcome whole = train_locally(config, tiny_corpus()).outcome;
    EXPECT_EQ(resumed.validation_final_loss, whole.validation_final_loss);
    for (const auto& [name, tensor] : whole.weights) EXPECT_EQ(resumed.weights.at(name).bytes, tensor.bytes) << name;
  }
}

TEST(TiedEmbeddingRun, ACheckpointHasOneOwnerWithMomentsAndWeights) {
  const TemporaryFolder folder;
  const TrainingOutcome trained = train_in(with_loss(pipeline(), sim::Half::kGather, 0.5), folder.path(), 12);
  const Floats owner = stored_tokens(folder.path(), 12, 1);
  EXPECT_NE(stored_tokens(folder.path(), 12, 0), owner) << "the copy lost values";
  EXPECT_FALSE(stored_tokens(folder.path(), 12, 1, "first moments").empty());
  EXPECT_TRUE(stored_tokens(folder.path(), 12, 0, "first moments").empty());
  EXPECT_EQ(floats_of(trained.weights.at(kTiedTensor).bytes), owner);
  const CheckpointFolder checkpoints(folder.path());
  const CheckpointWeights weights = weights_of_checkpoint(checkpoints.of_step(12), checkpoints.manifest(12));
  EXPECT_EQ(floats_of(weights.tensors.at(kTiedTensor).bytes), owner);
  EXPECT_GT(weights.difference.max, 0);
  EXPECT_EQ(weights.difference.tensors, 1U);
}

/// Gives the rank with the copy separate values and moments, as in checkpoints with two owners.
void add_second_owner(const std::string& folder, std::uint64_t step) {
  const CheckpointFolder checkpoints(folder);
  Manifest manifest = checkpoints.manifest(step);
  const std::string files = checkpoints.of_step(step);
  RankFile& file = manifest.ranks.front();
  models::StoredTensors tensors = read_rank_file(files, file);
  const auto values = std::ranges::find_if(
      file.pieces, [](const StoredPiece& piece) { return piece.tensor == kTiedTensor && piece.field == "values"; });
  ASSERT_NE(values, file.pieces.end());
  for (const std::string field : {"first moments", "second moments"}) {
    StoredPiece piece = *values;
    piece.field = field;
    piece.key = field + "/" + kTiedTensor;
    models::StoredTensor moments = tensors.at(values->key);
    std::ranges::fill(moments.bytes, std::byte{0x3f});
    tensors.emplace(piece.key, std::move(moments));
    file.pieces.push_back(std::move(piece));
  }
  write_rank_file(files, tensors, file);
  std::ofstream(files + "/manifest.json") << manifest_text(manifest);
}

TEST(TiedEmbeddingRun, OfCheckpointsWithTwoOwnersTheOneWithTheHeadCounts) {
  const RunConfig config = pipeline();
  const TemporaryFolder folder;
  RunConfig first = config;
  first.training.steps = 5;
  (void)train_in(first, folder.path(), 5);
  add_second_owner(folder.path(), 5);
  // Resumes in the same layout, and in another one.
  const TrainingOutcome whole = train_locally(config, tiny_corpus()).outcome;
  const TemporaryFolder copied;
  std::filesystem::copy(folder.path(), copied.path(), std::filesystem::copy_options::recursive);
  const TrainingOutcome resumed = train_in(config, copied.path(), 100);
  EXPECT_EQ(resumed.resumed_at, std::vector<std::uint64_t>{5});
  EXPECT_EQ(resumed.validation_final_loss, whole.validation_final_loss);
  RunConfig elsewhere = config;
  elsewhere.parallel.pipeline = 1;
  elsewhere.start.emplace();
  elsewhere.start->manifest = CheckpointFolder(folder.path()).of_step(5) + "/manifest.json";
  elsewhere.start->step = 5;
  const TrainingOutcome recut = train_locally(elsewhere, tiny_corpus()).outcome;
  EXPECT_NEAR(recut.validation_final_loss.value(), whole.validation_final_loss.value(), 1e-4);
}

// A copy that lost all its values continues from its owner's values.
TEST(TiedEmbeddingRun, AnotherLayoutStartsFromTheOwnersValues) {
  const TemporaryFolder folder;
  RunConfig first = with_loss(pipeline(), sim::Half::kGather, 1);
  first.training.steps = 5;
  (void)train_in(first, folder.path(), 5);
  RunConfig next = observed(pipeline(2));
  next.training.accumulation = 1;
  next.training.steps = 6;
  next.start.emplace();
  next.start->manifest = CheckpointFolder(folder.path()).of_step(5) + "/manifest.json";
  next.start->step = 5;
  const TemporaryFolder second;
  (void)train_in(next, second.path());
  EXPECT_EQ(stored_tokens(second.path(), 6, 0), stored_tokens(second.path(), 6, 1));
  next.training.steps = 5;  // evaluated only
  const TinyResult start = train_locally(next, tiny_corpus());
  RunConfig alone = next;
  alone.parallel = comm::ParallelLayout({1, 1, 1, 1});
  alone.network = {};
  EXPECT_NEAR(start.outcome.validation_final_loss.value(),
              train_locally(alone, tiny_corpus()).outcome.validation_final_loss.value(), 1e-5);
}

// No values arrive, but those that are sent for certain: of the weights at the start, and at the return of a replica.
TEST(TiedEmbeddingRun, AReturningReplicaHasItsOwnersValues) {
  constexpr std::uint64_t kReturn = 6;
  RunConfig config = with_loss(pipeline(2), sim::Half::kGather, 1);
  config.training.steps = 8;
  config.failures.emplace().replicas = {{1, 4, kReturn, {}}};
  const TemporaryFolder folder;
  (void)train_in(config, folder.path());
  const auto rank = [&config](int data, int stage) { return config.parallel.rank({data, 0, stage, 0}); };
  const auto stored = [&](std::uint64_t step, int data, int stage) {
    return stored_tokens(folder.path(), step, rank(data, stage));
  };
  const Floats start = stored(1, 0, 0);
  EXPECT_EQ(stored(8, 0, 0), start);
  EXPECT_EQ(stored(3, 1, 0), start);
  const Floats owner = stored(kReturn - 1, 0, 1);
  EXPECT_NE(owner, start);
  EXPECT_EQ(stored(kReturn, 1, 0), owner);
  EXPECT_EQ(stored(8, 1, 0), owner);
}

}  // namespace
}  // namespace droptest::experiments::tied_embedding_test
