// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include "models/kernels/update_decision.h"

namespace droptest::models {

double clip_scale(double norm, double max_norm) {
  // A norm that is not finite is passed on: it must not look like a small one.
  const double scale = max_norm / (norm + 1e-6);
  return scale > 1.0 ? 1.0 : scale;
}

double mean_of_ranks(std::span<const double> values) {
  double difference = 0;
  for (const double value : values) difference += value - values.front();
  return values.front() + difference / static_cast<double>(values.size());
}

UpdateDecision decide_update(std::span<const double> losses, double squares, const UpdateRule& rule) {
  std::vector<double> means(losses.begin(), losses.end());
  for (double& mean : means) mean /= rule.micro_batches;
  UpdateDecision decision;
  decision.loss = mean_of_ranks(means);
  decision.gradient_norm = std::sqrt(squares);
  if (!std::isfinite(decision.loss) || !std::isfinite(decision.gradient_norm)) {
    decision.factor = std::numeric_limits<double>::quiet_NaN();
  } else if (rule.max_gradient_norm > 0) {
    decision.factor = clip_scale(decision.gradient_norm, rule.max_gradient_norm);
  }
  return decision;
}

}  // namespace droptest::models
