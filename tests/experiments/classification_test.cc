// SPDX-License-Identifier: Apache-2.0
// The quality of predictions, and classifiers that are trained in many layouts.
#include "experiments/training/classification.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "experiments/data/example_set.h"
#include "experiments/files/weights_file.h"
#include "experiments/training/single_rank.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/layouts_of_runs.h"

namespace droptest::experiments::classification_test {
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

/// The predictions of 10 examples: class 0 has 4 hits and 1 miss (as 1), class 1 has 2 hits and 2 misses (as 0), class
/// 2 has 1 miss.
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

// Guo et al. 2017, section 2: bin m has the confidences in ((m - 1) / M, m / M].
TEST(Quality, AConfidenceBetweenTwoBinsIsOfTheLowerOne) {
  Predictions two;
  two.labels = {0, 1};
  two.predictions = {0, 0};
  two.confidences = {0.8, 0.75};  // 0.8 is 12 / 15: both are of the bin from 11 / 15
  EXPECT_NEAR(quality_of(two, 2, 1).calibration_error.value, std::abs(0.8 + 0.75 - 1) / 2, 1e-12);
  two.confidences = {0.8, 0.85};
  EXPECT_NEAR(quality_of(two, 2, 1).calibration_error.value, (1 - 0.8) / 2 + 0.85 / 2, 1e-12);
  two.confidences = {1, 1};
  EXPECT_NEAR(quality_of(two, 2, 1).calibration_error.value, 0.5, 1e-12);
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

/// F1 of class 0 and of class 1, their mean, and the calibration error of predictions of two classes whose confidence
/// is 0.7 or 0.9: computed from the definitions.
std::array<double, 4> measures(const Predictions& all, const std::vector<std::size_t>& examples) {
  double hits[2] = {}, wrong[2] = {}, missed[2] = {}, surplus[2] = {};
  for (const std::size_t i : examples) {
    const auto label = static_cast<std::size_t>(all.labels[i]);
    const auto predicted = static_cast<std::size_t>(all.predictions[i]);
    ++(label == predicted ? hits[label] : wrong[predicted]);
    if (label != predicted) ++missed[label];
    surplus[all.confidences[i] > 0.8 ? 1 : 0] += all.confidences[i] - (label == predicted ? 1 : 0);
  }
  const auto f1 = [&](int c) { return 2 * hits[c] / (2 * hits[c] + wrong[c] + missed[c]); };
  const auto count = static_cast<double>(examples.size());
  return {f1(0), f1(1), (f1(0) + f1(1)) / 2, std::abs(surplus[0]) / count + std::abs(surplus[1]) / count};
}

// A bootstrap of ten times as many resamples from another generator; the quantile of 1000 is off by about 0.09
// deviations.
TEST(Quality, IntervalsOfAllMeasuresAreThoseOfABootstrap) {
  Predictions many;
  for (int i = 0; i < 400; ++i) {
    many.labels.push_back(i % 4 == 0 ? 1 : 0);
    many.predictions.push_back(i % 7 == 0 || (i > 250 && i % 5 == 0) ? 1 - many.labels.back() : many.labels.back());
    many.confidences.push_back(i % 3 == 0 ? 0.9 : 0.7);
  }
  std::mt19937_64 engine(5);
  std::array<std::vector<double>, 4> resampled;
  for (int resample = 0; resample < 10000; ++resample) {
    std::vector<std::size_t> examples(400);
    for (std::size_t& example : examples) example = engine() % 400;
    const std::array<double, 4> of = measures(many, examples);
    for (std::size_t m = 0; m < 4; ++m) resampled[m].push_back(of[m]);
  }
  const ClassificationQuality quality = quality_of(many, 2, 3);
  const Estimate* const found[] = {quality.f1.data(), &quality.f1[1], &quality.macro_f1, &quality.calibration_error};
  std::vector<std::size_t> whole(400);
  std::iota(whole.begin(), whole.end(), 0);
  for (std::size_t m = 0; m < 4; ++m) {
    std::vector<double>& values = resampled[m];
    std::sort(values.begin(), values.end());
    const double deviation = (values[8413] - values[1587]) / 2;
    EXPECT_NEAR(found[m]->value, measures(many, whole)[m], 1e-12) << m;
    EXPECT_NEAR(found[m]->low, values[250], 0.35 * deviation) << m;
    EXPECT_NEAR(found[m]->high, values[9750], 0.35 * deviation) << m;
  }
}

/// Sequences with their class in the first token; the other tokens have no information.
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
  threefold.parallel.tensor = 4;  // one of the ranks has no class
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

/// A language model of the classifier's extents in a file: no head and no adapters.
class WeightsWithoutHead {
 public:
  WeightsWithoutHead() : path_(folder_.path() + "/model.safetensors") {
    RunConfig config = tiny_classifier();
    config.model.classes = 0;
    config.seeds.weights = 77;
    write_weights(path_, initial_weights(config), {});
  }
  const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

TEST(Classifier, ANewHeadIsDrawnWhereverValuesAre) {
  const WeightsWithoutHead weights;
  RunConfig config = tiny_classifier();
  config.initial_weights = weights.path();
  config.parallel.data = 2;
  config.training.accumulation = 1;
  const TinyResult in_memory = train_locally(config, tiny_examples());
  EXPECT_NE(*in_memory.lines[0].validation_loss, std::log(3.0)) << "the loss of a head of zeros";
  const auto expect_equal = [&](const TinyResult& result) {
    EXPECT_EQ(result.lines[0].validation_loss, in_memory.lines[0].validation_loss) << "before the first step";
    expect_same_training(result, in_memory);
  };
  RunConfig sharded = config;
  sharded.sharding.zero = 3;
  expect_equal(train_locally(sharded, tiny_examples()));
  sharded.parallel.tensor = 2;
  expect_same_training(train_locally(sharded, tiny_examples()), in_memory);
  RunConfig outside = config;
  outside.parallel.data = 1;
  outside.training.accumulation = 2;
  outside.sharding.offloads_values = true;
  expect_equal(train_locally(outside, tiny_examples()));
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
}  // namespace droptest::experiments::classification_test
