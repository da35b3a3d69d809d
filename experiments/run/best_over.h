// SPDX-License-Identifier: Apache-2.0
// Which values of a sweep's best_over won at each point. docs/specs.md says how.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

/// A point of the sweep without the pointers of best_over.
struct BestPoint {
  nlohmann::json point;   ///< of the first run, the others too
  nlohmann::json labels;  ///< of its values, best_over's too
  /// The best values: pointer -> value, for each pointer of best_over. Null: no values have a selection loss for all
  /// seeds.
  nlohmann::json values;
  std::vector<std::size_t> runs;               ///< with those values: indices of SweepPlan::runs, one a training
  double mean_selection_loss = 0;              ///< over those runs
  std::optional<double> mean_validation_loss;  ///< over those runs; absent where one has none
};

/// For each point the values with the lowest mean selection loss over the seeds; of equal ones the first. Values of
/// which a run has no selection loss, because it diverged, failed or is not finished, do not take part. `summaries`: of
/// plan.runs, null where there is none.
std::vector<BestPoint> best_points(const SweepPlan& plan, std::span<const nlohmann::json> summaries);

}  // namespace droptest::experiments
