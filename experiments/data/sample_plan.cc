// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/sample_plan.h"

#include <string>

#include "sim/error.h"

namespace droptest::experiments {

SamplePlan::SamplePlan(const Rules& rules, std::uint64_t samples, std::uint64_t batch)
    : rules_(rules), order_(rules.seed, samples), batch_(batch) {
  DROPTEST_CHECK(samples > 0 && batch > 0 && (rules.last_batch == LastBatch::kTrained || batch <= samples),
                 "batches of " + std::to_string(batch) + " out of " + std::to_string(samples) + " samples");
}

std::uint64_t SamplePlan::begin(std::uint64_t position, std::uint64_t batch) const {
  const std::uint64_t index = position % samples();
  if (rules_.last_batch == LastBatch::kTrained || index + batch <= samples()) return position;
  return position - index + samples();
}

std::optional<std::uint64_t> SamplePlan::sample(std::uint64_t position) const {
  const std::uint64_t epoch = position / samples();
  if (rules_.epochs != 0 && epoch >= rules_.epochs) return std::nullopt;
  const std::uint64_t index = position % samples();
  return rules_.order == ShardConfig::Order::kAsStored ? index : order_.at(epoch, index);
}

std::optional<std::uint64_t> SamplePlan::steps_left(std::uint64_t position) const {
  if (rules_.epochs == 0) return std::nullopt;
  const std::uint64_t end = rules_.epochs * samples();
  if (position >= end) return 0;
  if (rules_.last_batch == LastBatch::kTrained) return (end - position + batch_ - 1) / batch_;
  const std::uint64_t epochs_after = rules_.epochs - 1 - position / samples();
  return (samples() - position % samples()) / batch_ + epochs_after * (samples() / batch_);
}

}  // namespace droptest::experiments
