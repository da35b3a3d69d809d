// SPDX-License-Identifier: Apache-2.0
#include "models/loss_scaler.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace droptest::models {

void LossScaler::take(Step step) {
  skipped_in_a_row_ = step == Step::kOverflow ? skipped_in_a_row_ + 1 : 0;
  if (step == Step::kOverflow) ++skipped_;
  if (config_.kind != LossScaleConfig::Kind::kDynamic) return;
  if (step == Step::kOverflow) {
    good_ = 0;
    if (left_ > 0) --left_;
    if (left_ > 0) return;
    scale_ = std::max(static_cast<float>(scale_ * config_.backoff), static_cast<float>(config_.minimum));
  } else if (++good_ == config_.interval) {
    good_ = 0;
    left_ = config_.hysteresis;
    const auto grown = static_cast<float>(scale_ * config_.growth);
    if (std::isfinite(grown)) scale_ = grown;
  }
}

void LossScaler::visit_state(StateVisitor& visitor) {
  if (!is_on()) return;
  std::uint64_t bits = std::bit_cast<std::uint32_t>(scale_);
  visitor.number("loss scale", bits);
  scale_ = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  visitor.number("loss scale: good steps", good_);
  visitor.number("loss scale: overflows before it falls", left_);
  visitor.number("loss scale: skipped steps", skipped_);
  visitor.number("loss scale: skipped steps in a row", skipped_in_a_row_);
}

}  // namespace droptest::models
