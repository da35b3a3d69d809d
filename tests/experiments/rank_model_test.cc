// SPDX-License-Identifier: Apache-2.0
// Evaluation over a lossy network, and generation of text.
#include "experiments/training/rank_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "experiments/training/single_rank.h"
#include "sim/error.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::rank_model_test {
namespace {

using testing::HasSubstr;

TEST(NetworkEvaluation, WithoutLossIsThatOfOneRankAndWithLossIsWorse) {
  RunConfig config = tiny_config();
  config.model.layers = 4;
  config.training.steps = 40;
  config.training.learning_rate.total_steps = 40;
  config.record.weights = RecordConfig::Weights::kFinal;
  const models::StoredTensors weights = train_locally(config, tiny_corpus()).outcome.weights;
  const EvaluationBatches data(tiny_corpus().validation, 320, 4, 16);
  const auto detail = models::EvaluationDetail::kMargins;
  const Evaluated one = evaluate_on_one_rank(config, weights, "weights", data, detail, 1);
  EXPECT_GT(one.hits, 80U) << "of 320";
  for (const auto& [tensor, data_ranks, pipeline] : {std::tuple(2, 1, 1), std::tuple(1, 2, 2), std::tuple(4, 3, 1)}) {
    RunConfig many = config;
    many.parallel.tensor = tensor;
    many.parallel.data = data_ranks;
    many.parallel.pipeline = pipeline;
    const Evaluated got = evaluate_over_network(many, weights, "weights", data, detail).result;
    EXPECT_NEAR(got.mean_loss, one.mean_loss, 1e-5);
    EXPECT_EQ(got.hits, one.hits);
  }
  lose(config, sim::TrafficClass::kTpForward, 0.2);
  const NetworkEvaluation lossy = evaluate_over_network(config, weights, "weights", data, detail);
  EXPECT_GT(lossy.result.mean_loss, one.mean_loss + 0.05);
  EXPECT_LT(lossy.result.hits, one.hits);
  ASSERT_EQ(lossy.statistics.size(), 1U);
  EXPECT_LT(std::abs(lossy.statistics[0].total().z()), 4.5);
}

TEST(ChooseToken, IsTheLargestLogitOrADraw) {
  const std::vector<double> logits = {0, std::log(3.0), -50, std::log(3.0)};
  EXPECT_EQ(choose_token(logits, {}, 0), 1) << "of equal ones the first";
  EXPECT_EQ(choose_token(logits, {.temperature = 1, .top_k = 1}, 5), 1);
  std::vector<int> counts(4);
  constexpr int kDraws = 7000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(choose_token(logits, {.temperature = 1}, static_cast<std::uint64_t>(i)))];
  }
  const auto z = [&](int token, double share) {
    return (counts[static_cast<std::size_t>(token)] - kDraws * share) / std::sqrt(kDraws * share * (1 - share));
  };
  EXPECT_LT(std::abs(z(0, 1.0 / 7)), 4);
  EXPECT_LT(std::abs(z(1, 3.0 / 7)), 4);
  EXPECT_EQ(counts[2], 0);
  counts.assign(4, 0);
  // At temperature 1/2 the odds are 1 to 9 to 9.
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(choose_token(logits, {.temperature = 0.5}, static_cast<std::uint64_t>(i)))];
  }
  EXPECT_LT(std::abs(z(0, 1.0 / 19)), 4);
}

TEST(Generation, WithTheCacheEqualsWithout) {
  RunConfig config = tiny_config();
  config.model.layers = 2;
  const models::StoredTensors weights = initial_weights(config);
  const std::vector<std::int32_t> prompt = {5, 1, 60};
  for (const int pipeline : {1, 2}) {
    config.parallel.pipeline = pipeline;
    GenerationOptions options{.tokens = 100, .temperature = 1, .seed = 9};
    const Generation cached = generate(config, weights, "weights", prompt, options);
    EXPECT_EQ(cached.tokens.size(), 13U) << "as many as the context of 16 has room for";
    options.cache = GenerationOptions::Cache::kUnused;
    EXPECT_EQ(generate(config, weights, "weights", prompt, options).tokens, cached.tokens);
    options.end = cached.tokens[4];
    EXPECT_EQ(generate(config, weights, "weights", prompt, options).tokens.back(), cached.tokens[4]);
    EXPECT_LE(generate(config, weights, "weights", prompt, options).tokens.size(), 5U);
  }
}

TEST(Generation, LosesPacketsOfItsNetwork) {
  RunConfig config = tiny_config();
  const models::StoredTensors weights = initial_weights(config);
  const std::vector<std::int32_t> prompt = {5, 1, 60};
  lose(config, sim::TrafficClass::kTpForward, 0.5);
  const GenerationOptions options{.tokens = 6};
  const Generation lossy = generate(config, weights, "weights", prompt, options);
  EXPECT_EQ(lossy.tokens.size(), 6U);
  EXPECT_GT(lossy.statistics.at(0).total().lost_packets, 0U);
  EXPECT_EQ(generate(config, weights, "weights", prompt, options).tokens, lossy.tokens);
}

TEST(Generation, RefusesWhatItCannotContinue) {
  RunConfig config = tiny_config();
  const models::StoredTensors weights = initial_weights(config);
  const auto error_of = [&](const RunConfig& of, std::size_t length) {
    try {
      (void)generate(of, weights, "weights", std::vector<std::int32_t>(length, 1), {});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of(config, 0), HasSubstr("got a prompt of 0 tokens, want 1 to 15"));
  EXPECT_THAT(error_of(config, 16), HasSubstr("got a prompt of 16 tokens"));
  RunConfig replicas = config;
  replicas.parallel.data = 2;
  EXPECT_THAT(error_of(replicas, 2), HasSubstr("got 2 replicas"));
  RunConfig classifier = config;
  classifier.model.classes = 2;
  EXPECT_THAT(error_of(classifier, 2), HasSubstr("has a classification head"));
}

}  // namespace
}  // namespace droptest::experiments::rank_model_test
