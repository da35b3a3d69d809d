// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/classification.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::experiments {
namespace {

constexpr std::size_t kBins = 15;
constexpr std::size_t kResamples = 1000;

/// Sums over some of the examples, from which all numbers follow.
struct Tally {
  explicit Tally(int classes) : count(static_cast<std::size_t>(classes)), predicted(count.size()), hits(count.size()) {}
  std::vector<std::uint64_t> count, predicted, hits;  ///< examples, predictions and right predictions, by class
  double surplus[kBins] = {};                         ///< sum of confidences minus right predictions, by bin
};

struct QualityNumbers {
  double accuracy = 0;
  double macro_f1 = 0;
  double calibration_error = 0;
  std::vector<double> f1;
};

/// Bin b has the confidences from above b / 15 to (b + 1) / 15.
std::size_t bin_of(double confidence) {
  const double place = std::ceil(confidence * static_cast<double>(kBins)) - 1;
  return std::min(kBins - 1, static_cast<std::size_t>(std::max(0.0, place)));
}

QualityNumbers numbers_of(const Tally& tally) {
  QualityNumbers numbers;
  std::uint64_t all = 0;
  std::uint64_t hits = 0;
  for (std::size_t c = 0; c < tally.count.size(); ++c) {
    all += tally.count[c];
    hits += tally.hits[c];
    const std::uint64_t both = tally.count[c] + tally.predicted[c];
    numbers.f1.push_back(both == 0 ? 0 : 2 * static_cast<double>(tally.hits[c]) / static_cast<double>(both));
    numbers.macro_f1 += numbers.f1.back() / static_cast<double>(tally.count.size());
  }
  numbers.accuracy = static_cast<double>(hits) / static_cast<double>(all);
  for (const double surplus : tally.surplus) numbers.calibration_error += std::abs(surplus) / static_cast<double>(all);
  return numbers;
}

/// The value with the quantiles of its values in resamples, which are sorted.
Estimate estimate_of(double value, std::vector<double>& resampled) {
  std::sort(resampled.begin(), resampled.end());
  const auto at = [&](double share) {
    return resampled[static_cast<std::size_t>(std::llround(share * static_cast<double>(resampled.size() - 1)))];
  };
  return {value, at(0.025), at(0.975)};
}

nlohmann::json estimate_json(const Estimate& estimate) {
  return {{"value", estimate.value}, {"low", estimate.low}, {"high", estimate.high}};
}

}  // namespace

Predictions predictions_of(std::span<const double> logits, std::span<const std::int32_t> labels) {
  DROPTEST_CHECK(!labels.empty() && logits.size() % labels.size() == 0, "logits of another number of examples");
  const std::size_t classes = logits.size() / labels.size();
  Predictions result;
  result.labels.assign(labels.begin(), labels.end());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    std::vector<double> row(logits.begin() + static_cast<std::ptrdiff_t>(i * classes),
                            logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * classes));
    for (double& logit : row) {
      if (std::isnan(logit)) logit = -std::numeric_limits<double>::infinity();
    }
    const auto best = std::max_element(row.begin(), row.end());
    result.predictions.push_back(static_cast<std::int32_t>(best - row.begin()));
    double sum = 0;
    for (const double logit : row) sum += logit == *best ? 1.0 : std::exp(logit - *best);
    result.confidences.push_back(1 / sum);
  }
  return result;
}

ClassificationQuality quality_of(const Predictions& predictions, int classes, std::uint64_t seed) {
  const std::uint64_t examples = predictions.size();
  DROPTEST_CHECK(examples > 0, "the quality of no predictions");
  const auto count = static_cast<std::size_t>(classes);
  const auto add = [&](std::size_t i, Tally& tally) {
    const auto label = static_cast<std::size_t>(predictions.labels[i]);
    const auto predicted = static_cast<std::size_t>(predictions.predictions[i]);
    const bool hit = label == predicted;
    ++tally.count[label];
    ++tally.predicted[predicted];
    if (hit) ++tally.hits[label];
    const std::size_t bin = bin_of(predictions.confidences[i]);
    tally.surplus[bin] += predictions.confidences[i] - (hit ? 1 : 0);
  };
  ClassificationQuality quality;
  quality.examples = examples;
  quality.confusion.assign(count, std::vector<std::uint64_t>(count));
  Tally all(classes);
  for (std::size_t i = 0; i < examples; ++i) {
    add(i, all);
    ++quality.confusion[static_cast<std::size_t>(predictions.labels[i])]
                       [static_cast<std::size_t>(predictions.predictions[i])];
  }
  std::vector<double> accuracy, macro_f1, calibration;
  std::vector<std::vector<double>> f1(count);
  for (std::size_t resample = 0; resample < kResamples; ++resample) {
    sim::PhiloxEngine engine(seed, sim::Purpose::kBootstrap, resample);
    Tally tally(classes);
    // The high word of a 32-bit draw times the number: at most 2^-32 x examples off.
    for (std::uint64_t i = 0; i < examples; ++i) add(static_cast<std::size_t>(engine() * examples >> 32U), tally);
    const QualityNumbers numbers = numbers_of(tally);
    accuracy.push_back(numbers.accuracy);
    macro_f1.push_back(numbers.macro_f1);
    calibration.push_back(numbers.calibration_error);
    for (std::size_t c = 0; c < count; ++c) f1[c].push_back(numbers.f1[c]);
  }
  const QualityNumbers numbers = numbers_of(all);
  quality.accuracy = estimate_of(numbers.accuracy, accuracy);
  quality.macro_f1 = estimate_of(numbers.macro_f1, macro_f1);
  quality.calibration_error = estimate_of(numbers.calibration_error, calibration);
  for (std::size_t c = 0; c < count; ++c) quality.f1.push_back(estimate_of(numbers.f1[c], f1[c]));
  return quality;
}

nlohmann::json to_json(const ClassificationQuality& quality) {
  nlohmann::json f1 = nlohmann::json::array();
  for (const Estimate& estimate : quality.f1) f1.push_back(estimate_json(estimate));
  return {{"examples", quality.examples},
          {"accuracy", estimate_json(quality.accuracy)},
          {"macro_f1", estimate_json(quality.macro_f1)},
          {"calibration_error", estimate_json(quality.calibration_error)},
          {"f1", f1},
          {"confusion", quality.confusion}};
}

nlohmann::json to_json(const ClassificationQuality& quality, const std::vector<std::string>& classes) {
  nlohmann::json out = to_json(quality);
  out["classes"] = classes;
  return out;
}

}  // namespace droptest::experiments
