// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include "models/kernels/update_decision.h"

namespace droptest::models {

double clip_scale(double norm, double max_norm) {
  // A norm that is not finite gives the scale NaN or 0, and must not look like a small norm.
  const double scale = max_norm / (norm + 1e-6);
  return scale > 1.0 ? 1.0 : scale;
}

double mean_of_ranks(std::span<const double> values) {
  double difference = 0;
  for (const double value : values) difference += value - values.front();
  return values.front() + difference / static_cast<double>(values.size());
}

UpdateDecision decide_update(std::span<const RankNumbers> ranks, int rank, const UpdateRule& rule) {
  std::vector<double> losses;
  std::vector<double> squares(static_cast<std::size_t>(rule.replicas()));
  const auto replica_of = [&rule](std::size_t r) {
    return static_cast<std::size_t>(rule.replica_of(static_cast<std::int64_t>(r)));
  };
  const auto has_losses = [&rule](std::size_t r) {
    return r / static_cast<std::size_t>(rule.pipeline_stride) % static_cast<std::size_t>(rule.pipeline_ranks) ==
           static_cast<std::size_t>(rule.head_rank);
  };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (has_losses(r)) losses.push_back(ranks[r][0] / rule.loss_divisor);
    const bool is_missed = rule.flags == UpdateRule::Flags::kMissed && r != static_cast<std::size_t>(rank);
    if (is_missed && !std::isfinite(ranks[r][1])) continue;
    squares[replica_of(r)] += ranks[r][1];
  }
  UpdateDecision decision;
  decision.loss = mean_of_ranks(losses);
  const bool agreed = rule.norm == UpdateRule::Norm::kAgreed;
  // The bounds of an update apply to gradients without the loss scale.
  decision.gradient_norm =
      std::sqrt(agreed ? mean_of_ranks(squares) : squares[replica_of(static_cast<std::size_t>(rank))]) /
      rule.loss_scale;
  // The mean over replicas is finite only if all of them are.
  if (!std::isfinite(decision.loss) || !std::isfinite(mean_of_ranks(squares))) {
    decision.factor = std::numeric_limits<double>::quiet_NaN();
  } else {
    const bool clips = rule.max_gradient_norm > 0;
    decision.factor = (clips ? clip_scale(decision.gradient_norm, rule.max_gradient_norm) : 1) / rule.loss_scale;
  }
  return decision;
}

}  // namespace droptest::models
