// SPDX-License-Identifier: Apache-2.0
// The best values of a sweep's best_over at each point (docs/specs.md).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

/// A point of the sweep without the pointers of best_over.
struct BestPoint {
  nlohmann::json point;   ///< the whole point of the first run, pointers of best_over included
  nlohmann::json labels;  ///< the labels of that point's values
  /// The best values: pointer -> value, for each pointer of best_over. Null: no values have a selection loss for all
  /// seeds.
  nlohmann::json values;
  std::vector<std::size_t> runs;               ///< runs with the best values: indices of SweepPlan::runs
  double mean_selection_loss = 0;              ///< mean selection loss of `runs`
  std::optional<double> mean_validation_loss;  ///< mean validation loss of `runs`; absent if a run has none
};

/// The values with the lowest mean selection loss over the seeds, for each point; the first of equally good values.
/// Values take no part if a run of them has no selection loss, because it diverged, failed or is not finished.
/// `summaries`: the summary of each of plan.runs; null: there is none.
std::vector<BestPoint> best_points(const SweepPlan& plan, std::span<const nlohmann::json> summaries);

}  // namespace droptest::experiments
