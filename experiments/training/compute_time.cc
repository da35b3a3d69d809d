// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/compute_time.h"

#include <cstddef>

#include "experiments/spec/pipeline_plan.h"

namespace droptest::experiments {
namespace {

/// The backward pass's share of the compute time of a step: it has two GEMMs for each GEMM of the forward pass.
constexpr double kBackwardShare = 2.0 / 3;

/// The share of a step's compute time that the backward pass of that block takes in a micro-batch. All blocks have
/// equal times; the head comes before the last one, with a time in proportion to its GEMM. 0 for a layer below 0.
double backward_share(const RunConfig& config, int layer) {
  if (layer < 0) return 0;
  const models::Gpt2Config& model = config.model;
  const double block = 12.0 * model.width;
  const double head = layer == model.layers - 1 ? model.outputs() : 0;
  return kBackwardShare / config.training.accumulation * (block + head) / (block * model.layers + model.outputs());
}

/// Gradient buckets overlap with the rest of the backward pass.
bool has_buckets(const RunConfig& config) { return config.parallel.gradient_ranks() > 1 && !config.outer.is_on(); }

}  // namespace

std::optional<comm::TimeModel> time_model(const RunConfig& config) {
  std::optional<comm::TimeModel> time = config.time;
  if (time && has_buckets(config)) time->later_share = kBackwardShare;
  if (time && config.parallel.pipeline > 1) time->later_share = 1;  // stages compute when they can
  return time;
}

std::function<void(const models::Action&)> follow_passes(const RunConfig& config, comm::LossyCommunicator& network,
                                                         TrainingModel& model) {
  if (!config.time) return {};
  if (config.parallel.pipeline > 1) {
    return [&config, &network, plan = model.pipeline()](const models::Action& action) {
      const auto stage = static_cast<std::size_t>(action.stage);
      network.pass_compute_share(compute_share(config, plan->stages[stage], action.kind));
    };
  }
  if (!has_buckets(config)) return {};
  // The time of a block passes before its sums over tensor-parallel ranks. These sums need the same port as the buckets
  // that the block behind it has started, and wait for the rest of them.
  model.set_backward_passed(
      [&config, &network](int layer) { network.pass_compute_share(backward_share(config, layer - 1)); });
  return [&config, &network](const models::Action& action) {
    if (action.is_forward()) network.pass_compute_share(backward_share(config, config.model.layers - 1));
  };
}

}  // namespace droptest::experiments
