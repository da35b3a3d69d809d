// SPDX-License-Identifier: Apache-2.0
// Runs with a loss scale: skipped steps, their records, and remembered gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/training/trainer.h"
#include "experiments/training/trainer_parts.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::loss_scale_trainer_test {
namespace {

using models::LossScaleConfig;
using models::Precision;
using sim::TrafficClass;
using Kind = LossScaleConfig::Kind;

RunConfig float16_config(double initial) {
  RunConfig config = tiny_config();
  config.training.precision = {Precision::kFloat16, Precision::kFloat16};
  config.training.loss_scale = {.kind = Kind::kDynamic, .initial = initial};
  config.record.every_steps = 1;
  return config;
}

TEST(LossScaleOfRun, SkippedStepsLeaveTheScheduleAndAreCounted) {
  const RunConfig config = float16_config(0x1p30);
  const TinyResult run = train_locally(config, tiny_corpus());
  ASSERT_EQ(run.lines.size(), 13U);
  EXPECT_FALSE(run.lines[0].loss_scale);
  std::uint64_t skipped = 0;
  double scale = 0x1p30;
  for (const MetricsLine& line : run.lines) {
    if (line.step == 0) continue;
    EXPECT_EQ(line.learning_rate, config.training.learning_rate.at(line.step - 1 - skipped)) << line.step;
    EXPECT_EQ(line.loss_scale, scale) << line.step;
    const bool was_skipped = line.skipped_steps != skipped;
    EXPECT_EQ(line.skipped_steps, skipped + (was_skipped ? 1 : 0)) << line.step;
    EXPECT_EQ(line.gradient_norm.has_value(), !was_skipped) << "a norm that is not finite is no number of the run";
    EXPECT_EQ(to_json_line(line)["skipped_steps"], *line.skipped_steps);
    skipped = *line.skipped_steps;
    if (was_skipped) scale /= 2;
  }
  EXPECT_GE(skipped, 2U);
  EXPECT_LE(skipped, 10U);
  EXPECT_FALSE(run.outcome.diverged_step);
  EXPECT_EQ(run.outcome.steps, 12U);
  for (const TrainingOutcome& of_rank : run.by_rank) {
    EXPECT_EQ(of_rank.skipped_steps, skipped);
    EXPECT_EQ(of_rank.loss_scale, scale);
  }
  EXPECT_TRUE(std::isfinite(run.outcome.train_final_loss.value()));
}

TEST(LossScaleOfRun, EndsAfterTooManyOverflowsInARow) {
  RunConfig config = float16_config(0x1p100);
  config.training.loss_scale.kind = Kind::kStatic;
  config.training.loss_scale.give_up_after = 4;
  const TinyResult run = train_locally(config, tiny_corpus());
  EXPECT_EQ(run.outcome.diverged_step, 4U);
  EXPECT_EQ(run.outcome.skipped_steps, 4U);
  EXPECT_EQ(run.outcome.loss_scale, 0x1p100);
}

TEST(LossScaleOfRun, WithoutASingleUpdateIsNoCompletedRun) {
  RunConfig config = float16_config(0x1p100);
  config.training.loss_scale.give_up_after = 1000;
  const TinyResult run = train_locally(config, tiny_corpus());
  EXPECT_EQ(run.outcome.steps, 12U);
  EXPECT_EQ(run.outcome.skipped_steps, 12U);
  EXPECT_EQ(run.outcome.diverged_step, 12U);
}

TEST(LossScaleOfRun, TrainsInFloat16AsInFloat32) {
  const TinyResult exact = train_locally(tiny_config(), tiny_corpus());
  const TinyResult run = train_locally(float16_config(65536), tiny_corpus());
  EXPECT_EQ(run.outcome.skipped_steps, 0U);
  EXPECT_NEAR(run.outcome.validation_final_loss.value(), exact.outcome.validation_final_loss.value(), 0.01);
  EXPECT_NE(run.outcome.validation_final_loss, exact.outcome.validation_final_loss);
}

// The scale doubles with each step. Powers of two cause no rounding, so a run with memories that follow the scale has
// the same bits.
TEST(LossScaleOfRun, RememberedGradientsFollowTheScale) {
  for (const TrafficClass of : {TrafficClass::kTpBackward, TrafficClass::kDpGradient, TrafficClass::kPpGradient}) {
    for (const bool feeds_back : {false, true}) {
      if (feeds_back && of == TrafficClass::kPpGradient) continue;
      SCOPED_TRACE(std::string(sim::traffic_class_name(of)) + (feeds_back ? ", error feedback" : ", stale"));
      RunConfig config = tiny_config();
      config.record.every_steps = 1;
      config.parallel.tensor = of == TrafficClass::kTpBackward ? 2 : 1;
      config.parallel.data = of == TrafficClass::kDpGradient ? 2 : 1;
      config.parallel.pipeline = of == TrafficClass::kPpGradient ? 2 : 1;
      config.model.layers = 2;
      config.training.accumulation = 2;
      lose(config, of, 0.2);
      comm::ClassNetwork& network = *config.network.of(of);
      if (feeds_back) {
        network.recovery.error_feedback = comm::ClassRecovery::ErrorFeedback::kOn;
      } else {
        network.reduce.fill = network.gather.fill = comm::Fill::kStale;
      }
      const TinyResult plain = train_locally(config, tiny_corpus());
      config.training.loss_scale = {.kind = Kind::kDynamic, .initial = 64, .interval = 1};
      const TinyResult scaled = train_locally(config, tiny_corpus());
      EXPECT_EQ(scaled.outcome.loss_scale, 64 * 4096);
      EXPECT_EQ(trace_of(scaled), trace_of(plain));
      config.network = {};
      EXPECT_NE(trace_of(scaled), trace_of(train_locally(config, tiny_corpus()))) << "nothing was lost";
    }
  }
}

TEST(LossScaleOfRun, ReplicasThatLeaveFollowTheScale) {
  RunConfig config = float16_config(0x1p30);
  config.parallel.tensor = 1;
  config.parallel.data = 3;
  config.record.sample_every_steps = 1;
  config.failures.emplace().replicas = {{1, 2, 6, {}}, {2, 3, {}, {}}};
  const TinyResult run = train_locally(config, tiny_corpus());
  EXPECT_GE(run.outcome.skipped_steps, 2U);
  EXPECT_EQ(run.outcome.steps, 12U);
  for (const TrainingOutcome& of_rank : run.by_rank) {
    EXPECT_EQ(of_rank.skipped_steps, run.outcome.skipped_steps);
    EXPECT_EQ(of_rank.loss_scale, run.outcome.loss_scale);
  }
  EXPECT_EQ(run.lines.back().divergence.value().max, 0);
}

TEST(LossScaleOfRun, AFlagIsLostByChance) {
  using Flags = models::UpdateRule::Flags;
  RunConfig config = float16_config(0x1p30);
  EXPECT_EQ(overflow_flags(config, 0, 1), Flags::kReliable);
  config.training.flag_loss_rate = 1;
  EXPECT_EQ(overflow_flags(config, 0, 1), Flags::kMissed);
  config.training.flag_loss_rate = 0.25;
  int missed = 0;
  std::string fates;
  for (int rank = 0; rank < 2; ++rank) {
    for (std::uint64_t step = 1; step <= 4000; ++step) {
      const bool is_missed = overflow_flags(config, rank, step) == Flags::kMissed;
      missed += is_missed ? 1 : 0;
      if (step <= 32) fates += is_missed ? 'x' : '.';
    }
  }
  EXPECT_NEAR(missed, 2000, 4 * std::sqrt(8000 * 0.25 * 0.75));
  EXPECT_NE(fates.substr(0, 32), fates.substr(32)) << "ranks have fates of their own";
  // Ranks that part still end together.
  for (const int zero : {0, 1}) {
    config.parallel.data = zero == 1 ? 2 : 1;
    config.sharding.zero = zero;
    config.training.flag_loss_rate = 0.5;
    EXPECT_EQ(train_locally(config, tiny_corpus()).outcome.steps, 12U);
  }
}

}  // namespace
}  // namespace droptest::experiments::loss_scale_trainer_test
