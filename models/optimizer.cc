// SPDX-License-Identifier: Apache-2.0
#include "models/optimizer.h"

#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "models/kernels/chunks.h"
#include "models/kernels/lanes.h"

namespace droptest::models {

template <class T>
AdamW<T>::AdamW(std::span<Parameter<T>> parameters, const AdamWConfig& config, const Team& team)
    : parameters_(parameters), config_(config), team_(team) {
  for (const Parameter<T>& parameter : parameters) {
    first_moments_.emplace_back(parameter.value.size());
    second_moments_.emplace_back(parameter.value.size());
  }
}

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

template <class T>
void AdamW<T>::step(double learning_rate, double gradient_scale) {
  AdamWStep update = adamw_step(config_, ++step_, learning_rate, gradient_scale);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter<T>& parameter = parameters_[i];
    update.weight_decay = parameter.decay == Decay::kDecays ? config_.weight_decay : 0.0;
    adamw_update<T>(parameter.value, parameter.gradient, first_moments_[i].elems(), second_moments_[i].elems(), update,
                    team_);
  }
}

namespace {

/// Sum of squares, in chunks whose sums are added in order.
template <class T>
double sum_of_squares(std::span<const T> values, const Team& team) {
  constexpr std::int64_t kMostChunks = 64;
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t chunk = chunk_items(count, 16384, kMostChunks);
  std::array<double, kMostChunks> sums{};
  for_vector_chunks(count, chunk, team, [&](std::int64_t begin, std::int64_t end) {
    const T* v = values.data() + begin;
    sums[static_cast<std::size_t>(begin / chunk)] = lane_sum<double>(
        end - begin, [v](std::int64_t i) { return static_cast<double>(v[i]) * static_cast<double>(v[i]); });
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

template <class T>
double global_gradient_norm(std::span<const Parameter<T>> parameters, comm::Communicator& tensor_group,
                            const Team& team) {
  double squares = 0;
  for (const Parameter<T>& parameter : parameters) {
    if (parameter.placement == Placement::kReplicated && tensor_group.rank() != 0) continue;
    squares += sum_of_squares<T>(parameter.gradient, team);
  }
  return norm_over_ranks(squares, tensor_group);
}

double norm_over_ranks(double squares, comm::Communicator& tensor_group) {
  tensor_group.all_reduce(std::span<double>(&squares, 1), comm::ReduceOp::kSum,
                          {sim::TrafficClass::kControl, "gradient_norm", -1});
  return std::sqrt(squares);
}

double clip_scale(double norm, double max_norm) {
  // A norm that is not finite is passed on: it must not look like a small one.
  const double scale = max_norm / (norm + 1e-6);
  return scale > 1.0 ? 1.0 : scale;
}

double LearningRateSchedule::at(std::uint64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (step >= total_steps) return floor;
  const double progress = static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

template class AdamW<float>;
template class AdamW<double>;
template double global_gradient_norm<float>(std::span<const Parameter<float>>, comm::Communicator&, const Team&);
template double global_gradient_norm<double>(std::span<const Parameter<double>>, comm::Communicator&, const Team&);

}  // namespace droptest::models
