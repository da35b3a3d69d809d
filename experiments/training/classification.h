// SPDX-License-Identifier: Apache-2.0
// The quality of a classifier on labelled examples, with intervals (docs/classification.md).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "sim/state_visitor.h"

namespace droptest::experiments {

/// The predictions of a classifier for the examples of a set.
struct Predictions {
  std::vector<std::int32_t> labels;       ///< the true classes
  std::vector<std::int32_t> predictions;  ///< the classes with the largest logit; the first of equal ones
  std::vector<double> confidences;        ///< probability of the predicted class

  std::uint64_t size() const { return labels.size(); }
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, labels, predictions, confidences); }
};

/// Shapes: logits [labels, classes]. A logit that is not a number counts as minus infinity.
Predictions predictions_of(std::span<const double> logits, std::span<const std::int32_t> labels);

/// A number with the 2.5 % and 97.5 % quantiles of its values in resamples of the examples (percentile bootstrap).
struct Estimate {
  double value = 0;
  double low = 0;
  double high = 0;
};

struct ClassificationQuality {
  std::uint64_t examples = 0;
  Estimate accuracy;
  Estimate macro_f1;           ///< mean over the classes
  Estimate calibration_error;  ///< expected calibration error: Guo et al. 2017, equation 3, with 15 bins
  std::vector<Estimate> f1;    ///< 2 TP / (2 TP + FP + FN) by class, 0 if that is 0 / 0
  std::vector<std::vector<std::uint64_t>> confusion;  ///< [true class][predicted class]
};

/// The quality of predictions. `seed`: the seed of the resamples, which are the same for each call with as many
/// examples. Shapes: at least one example.
ClassificationQuality quality_of(const Predictions& predictions, int classes, std::uint64_t seed);

/// {"examples", "accuracy": {"value", "low", "high"}, "macro_f1", "calibration_error", "f1", "confusion"}, as
/// metrics.jsonl has it.
nlohmann::json to_json(const ClassificationQuality& quality);
/// to_json() with the names of the classes as "classes", as summary.json has it.
nlohmann::json to_json(const ClassificationQuality& quality, const std::vector<std::string>& classes);

}  // namespace droptest::experiments
