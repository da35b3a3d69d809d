// SPDX-License-Identifier: Apache-2.0
// The quality of predictions, and classifiers that are trained in many layouts.
#include "experiments/run/classification.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "experiments/data/example_set.h"
#include "tests/experiments/layouts_of_runs.h"

namespace droptest::experiments {
namespace {

using testing::ElementsAre;

TEST(Predictions, AreTheLargestLogitsWithTheirProbabilities) {
  const double ln3 = std::log(3.0);
  const std::vector<double> logits = {0, ln3, 0, 5, 5, -100, 0, NAN, -1};
  const std::vector<std::int32_t> labels = {1, 2, 0};
  const Predictions found = predictions_of(logits, labels);
  EXPECT_THAT(found.predictions, ElementsAre(1, 0, 0));
  EXPECT_NEAR(found.confidences[0], 0.6, 1e-12);
  EXPECT_NEAR(found.confidences[1], 0.5, 1e-12);
  EXPECT_NEAR(found.confidences[2], 1 / (1 + std::exp(-1)), 1e-12);
}

/// Of 10 examples: class 0 has 4 hits and 1 miss (as 1), class 1 has 2 hits and 2 misses (as 0), class 2 is 1 miss.
Predictions ten() {
  Predictions all;
  all.labels = {0, 0, 0, 0, 0, 1, 1, 1, 1, 2};
  all.predictions = {0, 0, 0, 0, 1, 1, 1, 0, 0, 1};
  all.confidences = {0.9, 0.9, 0.9, 0.9, 0.9, 0.6, 0.6, 0.6, 0.6, 0.6};
  return all;
}

TEST(Quality, HasTheNumbersOfTheConfusion) {
  const ClassificationQuality quality = quality_of(ten(), 4, 1);
  EXPECT_EQ(quality.examples, 10U);
  EXPECT_DOUBLE_EQ(quality.accuracy.value, 0.6);
  EXPECT_DOUBLE_EQ(quality.f1[0].value, 8.0 / (5 + 6));
  EXPECT_DOUBLE_EQ(quality.f1[1].value, 4.0 / (4 + 4));
  EXPECT_DOUBLE_EQ(quality.f1[2].value, 0);
  EXPECT_DOUBLE_EQ(quality.f1[3].value, 0);
  EXPECT_DOUBLE_EQ(quality.macro_f1.value, (8.0 / 11 + 0.5) / 4);
  EXPECT_THAT(quality.confusion, ElementsAre(ElementsAre(4U, 1U, 0U, 0U), ElementsAre(2U, 2U, 0U, 0U),
                                             ElementsAre(0U, 1U, 0U, 0U), ElementsAre(0U, 0U, 0U, 0U)));
  // Bins of 0.9 (5 examples, 4 hits) and of 0.6 (5 examples, 2 hits).
  EXPECT_NEAR(quality.calibration_error.value, 0.5 * std::abs(0.9 - 0.8) + 0.5 * std::abs(0.6 - 0.4), 1e-12);
}

TEST(Quality, IntervalsAreThoseOfTheBinomialDistribution) {
  Predictions many;
  constexpr int kExamples = 2000;
  for (int i = 0; i < kExamples; ++i) {
    many.labels.push_back(i % 2);
    many.predictions.push_back(i % 5 == 0 ? 1 - i % 2 : i % 2);
    many.confidences.push_back(0.8);
  }
  const Estimate accuracy = quality_of(many, 2, 7).accuracy;
  const double deviation = std::sqrt(0.8 * 0.2 / kExamples);
  EXPECT_DOUBLE_EQ(accuracy.value, 0.8);
  // The quantile of 1000 resamples is off by about 0.06 deviations.
  EXPECT_NEAR((accuracy.value - accuracy.low) / deviation, 1.96, 0.3);
  EXPECT_NEAR((accuracy.high - accuracy.value) / deviation, 1.96, 0.3);
  EXPECT_EQ(quality_of(many, 2, 7).accuracy.low, accuracy.low);
}

/// Sequences whose class is in their first token; the rest says nothing.
Corpus tiny_examples() {
  ExampleSets sets;
  for (int i = 0; i < 90; ++i) {
    ExampleSet& set = i % 3 == 2 ? sets.validation : sets.training;
    set.labels.push_back(i / 3 % 3);
    std::vector<std::int32_t>& tokens = set.tokens.emplace_back();
    tokens.push_back(10 + set.labels.back());
    for (int k = 0; k < i % 9; ++k) tokens.push_back(20 + (i * 5 + k * 11) % 13);
  }
  Corpus corpus;
  corpus.examples = std::make_shared<const ExampleSets>(std::move(sets));
  return corpus;
}

RunConfig tiny_classifier() {
  RunConfig config = tiny_config();
  config.model.layers = 2;
  config.model.classes = 3;
  config.data.examples.emplace().labels = {"a", "b", "c"};
  config.parallel.tensor = 1;
  config.training.steps = 20;
  config.training.learning_rate.total_steps = 20;
  config.training.batch_sequences = 4;
  config.training.accumulation = 2;
  config.validation.every_steps = 10;
  return config;
}

TEST(Classifier, LearnsAndIsTheSameInAllLayouts) {
  const TinyResult one = train_locally(tiny_classifier(), tiny_examples());
  ASSERT_TRUE(one.outcome.predictions.has_value());
  EXPECT_EQ(one.outcome.validation_tokens, 30U);
  EXPECT_EQ(one.outcome.predictions->labels, tiny_examples().examples->validation.labels);
  const ClassificationQuality quality = quality_of(*one.outcome.predictions, 3, 3);
  EXPECT_GT(quality.accuracy.value, 0.6) << "of three classes";
  EXPECT_EQ(one.lines.back().classification, to_json(quality));
  RunConfig pipeline = tiny_classifier();
  pipeline.parallel.pipeline = 2;
  RunConfig threefold = pipeline;
  threefold.parallel.tensor = 4;  // of which one has no class
  threefold.parallel.data = 2;
  threefold.training.accumulation = 1;
  threefold.sharding.zero = 1;
  RunConfig data = tiny_classifier();
  data.parallel.data = 2;
  data.parallel.tensor = 2;
  data.training.accumulation = 1;
  for (const RunConfig& config : {pipeline, data, threefold}) {
    const TinyResult many = train_locally(config, tiny_examples());
    expect_same_training(many, one);
    ASSERT_TRUE(many.outcome.predictions.has_value());
    EXPECT_EQ(many.outcome.predictions->predictions, one.outcome.predictions->predictions);
    for (std::size_t i = 0; i < one.outcome.predictions->confidences.size(); ++i) {
      EXPECT_NEAR(many.outcome.predictions->confidences[i], one.outcome.predictions->confidences[i], 0.01);
    }
  }
}

TEST(Classifier, EpochsReadEachExampleOnce) {
  RunConfig config = tiny_classifier();
  config.training.epochs = 2;
  config.training.batch_sequences = 3;
  config.training.accumulation = 3;
  const TinyResult result = train_locally(config, tiny_examples());
  EXPECT_EQ(result.outcome.steps, 14U) << "60 examples twice, in steps of 9";
  EXPECT_EQ(result.outcome.tokens, 120U * 16);
}

}  // namespace
}  // namespace droptest::experiments
