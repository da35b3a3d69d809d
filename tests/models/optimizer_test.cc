// SPDX-License-Identifier: Apache-2.0
#include "models/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/models/formula_model.h"

namespace droptest::models::optimizer_test {
namespace {

TEST(AdamW, FollowsTheFormulaStepByStep) {
  std::vector<double> value = {1.0, -2.0, 0.5};
  std::vector<double> gradient(3);
  std::vector<double> first(3);
  std::vector<double> second(3);
  const OptimizerConfig config{0.9, 0.99, 1e-3, 0.2};
  std::vector<double> expected = value;
  std::vector<double> m(3);
  std::vector<double> v(3);
  for (int step = 1; step <= 4; ++step) {
    for (std::size_t i = 0; i < 3; ++i) {
      gradient[i] = 3 * mixed(static_cast<std::uint64_t>(step), i);
      const double g = 0.5 * gradient[i];
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.99 * v[i] + 0.01 * g * g;
      const double update = m[i] / (1 - std::pow(0.9, step)) / (std::sqrt(v[i] / (1 - std::pow(0.99, step))) + 1e-3);
      expected[i] = expected[i] * (1 - 0.01 * 0.2) - 0.01 * update;
    }
    adamw_update<double>(value, gradient, first, second,
                         adamw_step(config, static_cast<std::uint64_t>(step), 0.01, 0.5), 1);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(value[i], expected[i], 1e-14) << "step " << step;
  }
}

// Two steps of 0.5 with momentum 0.5, computed by hand.
TEST(Sgd, FollowsTheFormulaStepByStep) {
  std::vector<double> value = {1.0, -2.0};
  std::vector<double> velocity(2);
  const SgdStep step{.learning_rate = 0.5, .gradient_scale = 0.25, .momentum = 0.5, .weight_decay = 0.125};
  sgd_update<double>(value, std::vector<double>{2.0, 4.0}, velocity, step, 1);
  EXPECT_EQ(velocity, (std::vector<double>{0.625, 0.75}));  // 0.5 + 0.125, 1 - 0.25
  EXPECT_EQ(value, (std::vector<double>{0.6875, -2.375}));
  sgd_update<double>(value, std::vector<double>{0.0, -1.0}, velocity, step, 1);
  EXPECT_EQ(velocity, (std::vector<double>{0.3125 + 0.0859375, 0.375 - 0.25 - 0.296875}));
  EXPECT_EQ(value, (std::vector<double>{0.6875 - 0.19921875, -2.375 + 0.0859375}));
}

// A step of a model by SGD is the gradient, clipped and decayed, and leaves a velocity for the next one.
TEST(Sgd, TrainsAModelWithOneNumberForEachParameter) {
  comm::run_ranks(1, kTestTimeout, [](comm::Communicator& group) {
    const OptimizerConfig sgd{.weight_decay = 0.5, .rule = OptimizerConfig::Rule::kSgd, .momentum = 0.5};
    HostGpt2<float> model({1, 32, 4, 12, 97}, group, 1, {}, sgd);
    set_formula_weights(model, group);
    std::vector<std::vector<float>> before;
    for (const auto& parameter : model.parameters())
      before.emplace_back(parameter.value.begin(), parameter.value.end());
    model.step(0.25, 1.0);  // gradients are zero: only decay moves anything
    model.step(0.25, 1.0);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const auto& parameter = model.parameters()[i];
      for (std::size_t k = 0; k < before[i].size(); ++k) {
        const float first = before[i][k] - 0.25F * (0.5F * before[i][k]);
        const float second = first - 0.25F * (0.5F * (0.5F * before[i][k]) + 0.5F * first);
        EXPECT_FLOAT_EQ(parameter.value[k], parameter.shape.size() == 2 ? second : before[i][k]);
      }
    }
    HostGpt2<float> other({1, 32, 4, 12, 97}, group, 1);
    EXPECT_EQ(4 * (other.model().memory_bytes() - model.model().memory_bytes()), other.model().memory_bytes());
  });
}

TEST(AdamW, DecaysMatricesOnly) {
  comm::run_ranks(1, kTestTimeout, [](comm::Communicator& group) {
    HostGpt2<float> model({1, 32, 4, 12, 97}, group, 1, {}, {.weight_decay = 0.5});
    set_formula_weights(model, group);
    std::vector<std::vector<float>> before;
    for (const auto& parameter : model.parameters())
      before.emplace_back(parameter.value.begin(), parameter.value.end());
    model.step(0.1, 1.0);  // gradients are zero: only decay moves anything
    for (std::size_t i = 0; i < before.size(); ++i) {
      const auto& parameter = model.parameters()[i];
      const float factor = parameter.shape.size() == 2 ? 0.95F : 1.0F;
      for (std::size_t k = 0; k < before[i].size(); ++k) EXPECT_EQ(parameter.value[k], before[i][k] * factor);
    }
  });
}

TEST(AdamW, BitsDoNotDependOnThreads) {
  const auto updated = [](int threads) {
    std::vector<float> value(100001);
    std::vector<float> gradient(value.size());
    for (std::size_t i = 0; i < value.size(); ++i) {
      value[i] = static_cast<float>(mixed(1, i));
      gradient[i] = static_cast<float>(mixed(2, i));
    }
    std::vector<float> first(value.size());
    std::vector<float> second(value.size());
    adamw_update<float>(value, gradient, first, second, adamw_step({}, 1, 1e-3, 1.0), threads);
    return value;
  };
  EXPECT_EQ(updated(1), updated(3));
}

TEST(GlobalGradientNorm, CountsReplicatedParametersOnceAndTiedOnesOnce) {
  const Gpt2Config config{1, 32, 4, 12, 97};
  const Pass one = formula_pass<double>(config, 1, 1, 2, 7);
  double squares = 0;
  for (const auto& tensor : one.gradients) {
    for (const double g : tensor.second) squares += g * g;
  }
  EXPECT_NEAR(one.norm / std::sqrt(squares), 1, 1e-14);
  for (const int ranks : {2, 3, 4}) {
    EXPECT_NEAR(formula_pass<double>(config, ranks, 1, 2, 7).norm / one.norm, 1, 1e-13) << ranks << " ranks";
  }
}

TEST(ClipScale, LeavesSmallNormsAndShowsInfiniteOnes) {
  EXPECT_EQ(clip_scale(0, 1), 1);
  EXPECT_EQ(clip_scale(0.5, 1), 1);
  EXPECT_EQ(clip_scale(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_scale(INFINITY, 1), 0);
  EXPECT_TRUE(std::isnan(clip_scale(NAN, 1)));
}

/// Peak 1, floor 0.25, 4 steps of warm-up out of 12.
LearningRateSchedule schedule_of(LearningRateSchedule::Shape shape) {
  LearningRateSchedule schedule{1.0, 0.25, 4, 12};
  schedule.shape = shape;
  return schedule;
}

std::vector<double> rates_of(const LearningRateSchedule& schedule, std::uint64_t steps) {
  std::vector<double> rates;
  for (std::uint64_t step = 0; step < steps; ++step) rates.push_back(schedule.at(step));
  return rates;
}

TEST(LearningRateSchedule, ConstantStaysAtThePeakAfterTheWarmUp) {
  const LearningRateSchedule schedule = schedule_of(LearningRateSchedule::Shape::kConstant);
  EXPECT_EQ(rates_of(schedule, 6), (std::vector<double>{0.25, 0.5, 0.75, 1, 1, 1}));
  EXPECT_EQ(schedule.at(1000), 1.0);
}

TEST(LearningRateSchedule, LinearFallsInEqualSteps) {
  const LearningRateSchedule schedule = schedule_of(LearningRateSchedule::Shape::kLinear);
  EXPECT_EQ(rates_of(schedule, 14), (std::vector<double>{0.25, 0.5, 0.75, 1, 1, 0.90625, 0.8125, 0.71875, 0.625,
                                                         0.53125, 0.4375, 0.34375, 0.25, 0.25}));
}

TEST(LearningRateSchedule, WarmupStableDecayFallsAtTheEndAlone) {
  LearningRateSchedule schedule = schedule_of(LearningRateSchedule::Shape::kWarmupStableDecay);
  schedule.decay_steps = 3;
  EXPECT_EQ(rates_of(schedule, 13), (std::vector<double>{0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25}));
  schedule.decay_steps = 100;  // never before the warm-up ends
  EXPECT_EQ(schedule.at(4), 1.0);
  EXPECT_EQ(schedule.at(8), 0.625);
}

TEST(LearningRateSchedule, ATableIsLinearBetweenItsPoints) {
  LearningRateSchedule schedule = schedule_of(LearningRateSchedule::Shape::kTable);
  schedule.peak = 2;
  schedule.points = {{2, 0.5}, {4, 1}, {5, 0}, {7, 0.25}};
  EXPECT_EQ(rates_of(schedule, 10), (std::vector<double>{1, 1, 1, 1.5, 2, 0, 0.25, 0.5, 0.5, 0.5}));
}

TEST(LearningRateSchedule, WarmsUpLinearlyThenFollowsACosine) {
  const LearningRateSchedule schedule{1.0, 0.1, 4, 14};
  EXPECT_EQ(schedule.at(0), 0.25);
  EXPECT_EQ(schedule.at(3), 1.0);
  EXPECT_EQ(schedule.at(4), 1.0);
  EXPECT_NEAR(schedule.at(9), 0.55, 1e-15);
  EXPECT_NEAR(schedule.at(13), 0.1 + 0.45 * (1 + std::cos(M_PI * 0.9)), 1e-15);
  EXPECT_EQ(schedule.at(14), 0.1);
  EXPECT_EQ(schedule.at(1000), 0.1);
  EXPECT_EQ((LearningRateSchedule{1.0, 0.1, 0, 10}).at(0), 1.0);
  EXPECT_EQ((LearningRateSchedule{1.0, 0.1, 5, 5}).at(5), 0.1);
}

}  // namespace
}  // namespace droptest::models::optimizer_test
