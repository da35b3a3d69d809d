// SPDX-License-Identifier: Apache-2.0
// Pipelines of a run: their messages, their time, and that the layout changes no result without loss.
#include <gtest/gtest.h>

#include "experiments/run/run_forecast.h"
#include "experiments/training/trainer.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/comm/exposed_time.h"
#include "tests/experiments/layouts_of_runs.h"
#include "tests/sim/z_values.h"

namespace droptest::experiments::pipeline_trainer_test {
namespace {

using models::ScheduleKind;
using sim::TrafficClass;
using enum models::ScheduleKind;

RunConfig pipeline(int ranks, ScheduleKind schedule = kOneForwardOneBackward, int chunks = 1) {
  RunConfig config = tiny_config();
  config.model.layers = 4;
  config.parallel.tensor = 1;
  config.parallel.pipeline = ranks;
  config.pipeline.schedule = schedule;
  config.pipeline.chunks = chunks;
  config.training.batch_sequences = 2;
  config.training.accumulation = 4;
  config.record.every_steps = 1;
  config.record.weights = RecordConfig::Weights::kFinal;
  return config;
}

TEST(Pipelines, ReadTheSameTextAndTrainTheSameModel) {
  const TinyResult one = train_locally(pipeline(1), tiny_corpus());
  RunConfig threefold = pipeline(2);
  threefold.parallel.data = 2;
  threefold.parallel.tensor = 2;
  threefold.sharding.zero = 1;
  threefold.training.accumulation = 2;
  for (const RunConfig& config :
       {pipeline(2), pipeline(4, kGpipe), pipeline(2, kZeroBubble, 2), pipeline(2, kInterleaved, 2), threefold}) {
    const TinyResult many = train_locally(config, tiny_corpus());
    expect_same_training(many, one);
    ASSERT_EQ(many.outcome.weights.size(), one.outcome.weights.size());
    for (const auto& [name, tensor] : one.outcome.weights) {
      ASSERT_TRUE(many.outcome.weights.contains(name)) << name;
      EXPECT_EQ(many.outcome.weights.at(name).shape, tensor.shape) << name;
    }
  }
}

TEST(Pipelines, StartFromTheWeightsOfOneRank) {
  RunConfig one = pipeline(1);
  one.training.steps = 1;
  one.training.learning_rate = {.peak = 0, .floor = 0, .total_steps = 1};
  one.training.optimizer.weight_decay = 0;
  RunConfig many = one;
  many.parallel.pipeline = 2;
  many.parallel.tensor = 2;
  const models::StoredTensors got = train_locally(many, tiny_corpus()).outcome.weights;
  const models::StoredTensors want = train_locally(one, tiny_corpus()).outcome.weights;
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) EXPECT_EQ(got.at(name).bytes, tensor.bytes) << name;
}

TEST(Pipelines, LoseThePacketsThatThePlanCounts) {
  for (const bool lossy_evaluation : {false, true}) {
    RunConfig config = pipeline(2, kInterleaved, 2);
    config.parallel.data = 2;
    config.training.accumulation = 2;
    for (const TrafficClass of : {TrafficClass::kPpActivation, TrafficClass::kPpGradient,
                                  TrafficClass::kEmbeddingGradient, TrafficClass::kDpGradient}) {
      lose(config, of, 0.05);
    }
    if (lossy_evaluation) {
      config.validation.network = ValidationConfig::Network::kLossy;
      config.network.of(TrafficClass::kPpActivation)->gather.fill = comm::Fill::kSkip;
      config.network.of(TrafficClass::kPpGradient)->gather.fill = comm::Fill::kSkip;
    }
    const TinyResult result = train_locally(config, tiny_corpus());
    for (const comm::ClassStatistics& statistics : result.outcome.statistics) {
      EXPECT_GT(statistics.total().lost_packets, 0U);
    }
    EXPECT_EQ(sent_packets(result), expected_packets(config));
    EXPECT_EQ(result.outcome.statistics.size(), 4U);
  }
}

// Messages of four packets, in bursts of 50 packets.
TEST(Pipelines, LoseAsManyPacketsAsTheirTheorySaysUnderBursts) {
  for (const auto& [schedule, chunks] : {std::pair(kOneForwardOneBackward, 1), std::pair(kInterleaved, 2)}) {
    std::vector<double> z;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      RunConfig config = pipeline(2, schedule, chunks);
      config.seeds.network = seed;
      config.training.steps = 30;
      config.training.accumulation = 8;
      config.record.every_steps = 10;
      config.validation.every_steps = 10;
      config.validation.network = ValidationConfig::Network::kLossy;
      for (const TrafficClass of : {TrafficClass::kPpActivation, TrafficClass::kPpGradient}) {
        comm::ClassNetwork network;
        network.payload_bytes = 1024;
        network.gather.loss = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.05, 50));
        config.network.of(of) = network;
      }
      for (const comm::ClassStatistics& statistics : train_locally(config, tiny_corpus()).outcome.statistics) {
        const comm::LossCounts counts = statistics.total();
        z.push_back(counts.z());
        const bool is_forward = statistics.traffic_class == TrafficClass::kPpActivation;
        EXPECT_EQ(counts.stretches.rbegin()->first, 30U * 8 * 4 * chunks) << "of training";
        EXPECT_EQ(counts.stretches.size(), static_cast<std::size_t>(chunks) * (is_forward ? 2 : 1))
            << "two links have different numbers of boundaries; evaluations have a stretch of their own";
      }
    }
    expect_standard(z);
  }
}

// Messages of an evaluation have separate ordinals on their links.
TEST(Pipelines, LoseTheSamePacketsHoweverOftenTheyAreEvaluated) {
  const auto losses = [](std::uint64_t every_steps, ValidationConfig::Network network) {
    RunConfig config = pipeline(2);
    config.validation.network = network;
    config.validation.every_steps = every_steps;
    for (const TrafficClass of : {TrafficClass::kPpActivation, TrafficClass::kPpGradient}) lose(config, of, 0.2);
    std::vector<double> all;
    for (const MetricsLine& line : train_locally(config, tiny_corpus()).lines) {
      if (line.train_loss) all.push_back(*line.train_loss);
    }
    return all;
  };
  const std::vector<double> want = losses(1, ValidationConfig::Network::kLossless);
  EXPECT_EQ(losses(100, ValidationConfig::Network::kLossless), want);
  EXPECT_EQ(losses(2, ValidationConfig::Network::kLossy), want);
}

// What is sent past stages takes part in evaluations over the network, too.
TEST(Pipelines, SkipStagesOverGlooAsOnLocalRanks) {
  if (!comm::backend_entry("gloo").built) GTEST_SKIP() << "the gloo backend was not built";
  for (RunConfig config : {pipeline(4), pipeline(2, kInterleaved, 2)}) {
    config.training.steps = 4;
    config.validation.network = ValidationConfig::Network::kLossy;
    for (const TrafficClass of : {TrafficClass::kPpActivation, TrafficClass::kPpGradient}) {
      lose(config, of, 0.2);
      config.network.of(of)->gather.fill = comm::Fill::kSkip;
    }
    const TinyResult local = train_locally(config, tiny_corpus());
    const TinyResult gloo = train_over_gloo(config, tiny_corpus());
    EXPECT_EQ(trace_of(gloo), trace_of(local));
    for (std::size_t c = 0; c < 2; ++c) {
      EXPECT_EQ(gloo.outcome.statistics.at(c).digest, local.outcome.statistics.at(c).digest);
    }
    // Fates that depend on time: calls run at waits, and receive an input that is sent past a stage before the stage's
    // result.
    const auto validation_of = [](const TinyResult& run) { return *run.outcome.validation_final_loss; };
    set_time(config, {1e-6, 1e9}, 1e-3);
    EXPECT_EQ(validation_of(train_locally(config, tiny_corpus())), validation_of(local));
    config.time->deadline_seconds = 10;
    EXPECT_EQ(validation_of(train_locally(config, tiny_corpus())), validation_of(local));
  }
}

TEST(Pipelines, OfOnePlacementHaveTheSameLossesUnderLoss) {
  const auto trace = [](ScheduleKind schedule) {
    RunConfig config = pipeline(2, schedule);
    lose(config, TrafficClass::kPpActivation, 0.05);
    lose(config, TrafficClass::kPpGradient, 0.05);
    return trace_of(train_locally(config, tiny_corpus()));
  };
  EXPECT_EQ(trace(kGpipe), trace(kOneForwardOneBackward));
  EXPECT_EQ(trace(kZeroBubble), trace(kOneForwardOneBackward));
}

// Links without a cost: the time of a step is the makespan of the schedule, with the head on the last stage.
TEST(Pipelines, TakeTheTimeOfTheirSchedule) {
  for (const ScheduleKind schedule : {kGpipe, kOneForwardOneBackward, kZeroBubble}) {
    RunConfig config = pipeline(4, schedule);
    config.training.steps = 3;
    config.training.accumulation = 8;
    config.network.of(TrafficClass::kPpActivation).emplace();
    config.network.of(TrafficClass::kPpGradient).emplace();
    set_time(config, {0, 1e30}, 1e-3);
    const comm::VirtualTime got = *train_locally(config, tiny_corpus()).outcome.time;
    EXPECT_NEAR(got.compute_seconds, 3e-3, 1e-12);
    EXPECT_NEAR(exposed_seconds(got), 0, 1e-12);
    EXPECT_GT(got.idle_seconds, 0.8 * (got.seconds - got.compute_seconds));  // ranks end before the last one does
    EXPECT_LE(got.idle_seconds, got.seconds - got.compute_seconds + 1e-12);
    set_time(config, {1e-4, 1e9}, 1e-3);
    const comm::VirtualTime slow = *train_locally(config, tiny_corpus()).outcome.time;
    EXPECT_GT(slow.exposed_in(TrafficClass::kPpActivation), 0);
    EXPECT_GT(slow.exposed_in(TrafficClass::kPpGradient), 0);
    EXPECT_GT(slow.idle_seconds, got.idle_seconds);
    EXPECT_GT(slow.seconds, got.seconds);
    // The last stage computes without a pause from its first input on: F of three stages before, then its own work;
    // then the gradients go back, whole passes or their first halves.
    const double block = 12.0 * config.model.width;
    const double model = 4 * block + config.model.vocabulary;
    const double first = 4e-3 * block / model / 8;  // seconds of a micro-batch on each stage except the last
    const double last = 4e-3 * (block + config.model.vocabulary) / model / 8;
    const double backward = schedule == kZeroBubble ? 1.0 / 3 : 2.0 / 3;
    const double step = 3 * first / 3 + 8 * last + 3 * first * backward;
    if (schedule != kZeroBubble) {
      EXPECT_NEAR(got.seconds, 3 * step, 1e-9);
    } else {
      EXPECT_LT(got.seconds, 3 * (8 * last + 3 * first));
    }
  }
}

}  // namespace
}  // namespace droptest::experiments::pipeline_trainer_test
