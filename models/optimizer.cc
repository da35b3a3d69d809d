// SPDX-License-Identifier: Apache-2.0
#include "models/optimizer.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "models/gpt2/gpt2_messages.h"

namespace droptest::models {

namespace {

enum class Counted : std::uint8_t { kAll, kSharded };

std::vector<ParameterRange> ranges_of(const ParameterStore& store, Counted counted) {
  std::vector<ParameterRange> ranges;
  for (std::size_t i = 0; i < store.tensors().size(); ++i) {
    if (counted == Counted::kSharded && store.tensors()[i].placement == Placement::kReplicated) continue;
    ranges.push_back(store.table().ranges[i]);
  }
  return ranges;
}

}  // namespace

AdamW::AdamW(ParameterStore& store, const AdamWConfig& config, Ops& ops)
    : store_(store),
      config_(config),
      ops_(ops),
      first_moments_(
          parameter_storage(store.table(), store.values().type, "AdamW's first moments", Ops::Content::kZeros, ops)),
      second_moments_(
          parameter_storage(store.table(), store.values().type, "AdamW's second moments", Ops::Content::kZeros, ops)),
      all_(ops.make_ranges(ranges_of(store, Counted::kAll))),
      counted_(ops.make_ranges(ranges_of(store, ops.rank() == 0 ? Counted::kAll : Counted::kSharded))) {}

AdamWStep adamw_step(const AdamWConfig& config, std::uint64_t step, double learning_rate, double gradient_scale) {
  AdamWStep update;
  update.learning_rate = learning_rate;
  update.gradient_scale = gradient_scale;
  update.beta1 = config.beta1;
  update.beta2 = config.beta2;
  update.epsilon = config.epsilon;
  update.weight_decay = config.weight_decay;
  update.bias_correction1 = 1.0 - std::pow(config.beta1, static_cast<double>(step));
  update.bias_correction2 = 1.0 - std::pow(config.beta2, static_cast<double>(step));
  return update;
}

void AdamW::step(double learning_rate, double gradient_scale) {
  update(learning_rate, gradient_scale, Ops::GradientFactor::kOfStep);
}

void AdamW::step_as_decided(double learning_rate) { update(learning_rate, 1, Ops::GradientFactor::kDecided); }

void AdamW::update(double learning_rate, double gradient_scale, Ops::GradientFactor factor) {
  ops_.adamw(*all_,
             {store_.values(), store_.gradients(), first_moments_.tensor, second_moments_.tensor, store_.rounded()},
             adamw_step(config_, ++step_, learning_rate, gradient_scale), factor);
}

void AdamW::visit_state(StateVisitor& visitor) {
  visitor.number("steps", step_);
  visitor.tensor("first moments", first_moments_.tensor);
  visitor.tensor("second moments", second_moments_.tensor);
}

void AdamW::sum_gradient_squares() { ops_.sum_squares(*counted_, store_.gradients(), Number::kGradientSquares); }

double norm_over_ranks(double squares, comm::Communicator& tensor_group) {
  tensor_group.all_reduce(std::span<double>(&squares, 1), comm::ReduceOp::kSum, Gpt2Messages::gradient_squares());
  return std::sqrt(squares);
}

double LearningRateSchedule::at(std::uint64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (step >= total_steps) return floor;
  const double progress = static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace droptest::models
