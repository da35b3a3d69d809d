// SPDX-License-Identifier: Apache-2.0
// Stages of a pipeline that lose their weights, and the replacements.
#include "experiments/training/stage_failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "experiments/training/trainer.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::stage_failures_test {
namespace {

using enum FailureConfig::Replacement;
using testing::ElementsAre;

RunConfig failing(int stages, double rate, FailureConfig::Replacement replacement, int layers_of_stage = 1) {
  RunConfig config = tiny_config();
  config.model.layers = stages * layers_of_stage;
  config.parallel.tensor = 1;
  config.parallel.pipeline = stages;
  config.training.accumulation = 2;
  config.training.steps = 2;
  config.record.weights = RecordConfig::Weights::kFinal;
  config.failures = {{}, rate, replacement};
  return config;
}

/// A learning rate of zero: weights stay those of the start, except after failures.
RunConfig without_training(RunConfig config) {
  config.training.learning_rate = {.peak = 0, .floor = 0, .total_steps = 1};
  return config;
}

std::vector<float> values(const TinyResult& run, const std::string& name) {
  const auto& bytes = run.outcome.weights.at(name).bytes;
  std::vector<float> result(bytes.size() / sizeof(float));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

TEST(StageFailures, HaveTheirRateAndSpareTheEndsAndTheFirstStep) {
  const RunConfig config = failing(5, 0.2, kMean);
  constexpr std::uint64_t kSteps = 20000;
  std::vector<double> counts(5);
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    for (const int stage : failing_stages(config, step)) ++counts[static_cast<std::size_t>(stage)];
  }
  EXPECT_TRUE(failing_stages(failing(5, 1, kMean), 1).empty());
  EXPECT_THAT(failing_stages(failing(5, 1, kMean), 2), ElementsAre(1, 2, 3));
  EXPECT_TRUE(failing_stages(failing(5, 0, kMean), 2).empty());
  EXPECT_EQ(counts[0], 0);
  EXPECT_EQ(counts[4], 0);
  for (const int stage : {1, 2, 3}) {
    const double deviation = std::sqrt(kSteps * 0.2 * 0.8);
    EXPECT_NEAR((counts[static_cast<std::size_t>(stage)] - kSteps * 0.2) / deviation, 0, 4) << stage;
  }
  RunConfig other = config;
  other.seeds.network = 2;
  const auto steps_of = [](const RunConfig& of) {
    std::vector<std::vector<int>> all;
    for (std::uint64_t step = 2; step < 50; ++step) all.push_back(failing_stages(of, step));
    return all;
  };
  EXPECT_NE(steps_of(config), steps_of(other));
}

// Two blocks in each of three stages; stage 1 has blocks 2 and 3, its neighbours blocks 0, 1 and 4, 5.
TEST(StageFailures, ReplaceTheBlocksOfTheStageAlone) {
  const auto run = [](FailureConfig::Replacement replacement, double rate, int tensor) {
    RunConfig config = without_training(failing(3, rate, replacement, 2));
    config.parallel.tensor = tensor;
    return train_locally(config, tiny_corpus());
  };
  const TinyResult start = run(kMean, 0, 1);
  EXPECT_TRUE(start.outcome.stage_failures.empty());
  for (const int tensor : {1, 2}) {
    const TinyResult mean = run(kMean, 1, tensor);
    ASSERT_EQ(mean.outcome.stage_failures.size(), 1U);
    EXPECT_EQ(mean.outcome.stage_failures[0].step, 2U);
    EXPECT_EQ(mean.outcome.stage_failures[0].stage, 1);
    const TinyResult weighted = run(kWeighted, 1, tensor);
    const TinyResult copy = run(kCopy, 1, tensor);
    const TinyResult zero = run(kZero, 1, tensor);
    const TinyResult random = run(kRandom, 1, tensor);
    for (const auto& [name, tensor_of] : start.outcome.weights) {
      const bool is_lost = name.starts_with("h.2.") || name.starts_with("h.3.");
      const std::vector<float> before = values(start, name);
      if (!is_lost) {
        for (const TinyResult* all : {&mean, &weighted, &copy, &zero, &random}) EXPECT_EQ(values(*all, name), before);
        continue;
      }
      const std::string rest = name.substr(3);
      const std::vector<float> first = values(start, (name[2] == '2' ? "h.0" : "h.1") + rest);
      const std::vector<float> last = values(start, (name[2] == '2' ? "h.4" : "h.5") + rest);
      const bool is_drawn = name.ends_with("weight") && name.find("ln") == std::string::npos;
      EXPECT_EQ(values(copy, name), first) << name;
      EXPECT_EQ(values(zero, name), std::vector<float>(first.size(), 0)) << name;
      EXPECT_EQ(values(random, name) != before, is_drawn) << name;
      std::vector<float> half(first.size());
      for (std::size_t i = 0; i < half.size(); ++i) half[i] = static_cast<float>(0.5 * first[i] + 0.5 * last[i]);
      EXPECT_EQ(values(mean, name), half) << name;
      EXPECT_EQ(values(weighted, name) != half, is_drawn) << name;
    }
    // One share for all elements: the least squares fit leaves nothing over.
    const std::vector<float> first = values(start, "h.0.mlp.c_fc.weight");
    const std::vector<float> last = values(start, "h.4.mlp.c_fc.weight");
    const std::vector<float> got = values(weighted, "h.2.mlp.c_fc.weight");
    const double share = (got[0] - last[0]) / (first[0] - last[0]);
    EXPECT_GT(share, 0);
    EXPECT_LT(share, 1);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], share * first[i] + (1 - share) * last[i], 1e-6);
  }
}

// A neighbour that fails, too, gives nothing.
TEST(StageFailures, LeaveOutNeighboursThatFail) {
  const TinyResult start = train_locally(without_training(failing(4, 0, kMean)), tiny_corpus());
  const TinyResult mean = train_locally(without_training(failing(4, 1, kMean)), tiny_corpus());
  ASSERT_EQ(mean.outcome.stage_failures.size(), 2U);
  const std::string name = ".mlp.c_fc.weight";
  EXPECT_EQ(values(mean, "h.1" + name), values(start, "h.0" + name));
  EXPECT_EQ(values(mean, "h.2" + name), values(start, "h.3" + name));
  // The middle one of three hears from no one.
  const TinyResult alone = train_locally(without_training(failing(5, 1, kMean)), tiny_corpus());
  EXPECT_NE(values(alone, "h.2" + name), std::vector<float>(values(start, "h.2" + name).size(), 0));
}

// The optimizer of a failed stage begins anew: AdamW's first step moves each weight by the learning rate.
TEST(StageFailures, BeginTheOptimizerAnew) {
  RunConfig config = failing(3, 1, kZero);
  config.training.steps = 6;
  config.training.learning_rate = {.peak = 1e-3, .floor = 1e-3, .total_steps = 6};
  config.training.optimizer.weight_decay = 0;
  const TinyResult run = train_locally(config, tiny_corpus());
  ASSERT_EQ(run.outcome.stage_failures.size(), 5U);
  const std::vector<float> bias = values(run, "h.1.mlp.c_proj.bias");
  for (const float b : bias) EXPECT_NEAR(std::abs(b), 1e-3, 1e-5);
}

}  // namespace
}  // namespace droptest::experiments::stage_failures_test
