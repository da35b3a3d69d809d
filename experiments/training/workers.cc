// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/workers.h"

#include <array>
#include <span>

namespace droptest::experiments {
namespace {

/// The parameters that this rank owns: without the copy of another stage's embedding.
std::vector<models::Parameter<float>> own_parameters(TrainingModel& model) {
  std::vector<models::Parameter<float>> own;
  const std::span<models::Parameter<float>> all = model.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!model.tensors()[i].is_copy) own.push_back(all[i]);
  }
  return own;
}

}  // namespace

Workers::Workers(const RunConfig& config, comm::Communicator& ranks, comm::LossyCommunicator& network,
                 TrainingModel& model)
    : ranks_(ranks), network_(network), model_(model), outer_(config.outer, ranks, own_parameters(model)) {}

void Workers::begin() { outer_.begin(own_parameters(model_)); }

void Workers::finish_step(std::uint64_t step, models::StepResult& result) {
  std::array<double, 3> numbers = {result.loss, result.gradient_norm, result.updated ? 0.0 : 1.0};
  {
    const auto pause = network_.pause_clock();
    ranks_.all_reduce(comm::Tensor(std::span<double>(numbers)), comm::ReduceOp::kMean,
                      {sim::TrafficClass::kControl, "results of the workers"});
  }
  result = {numbers[0], numbers[1], numbers[2] == 0, result.loss_scale};
  if (!result.updated || !outer_.is_due(step)) return;
  std::vector<models::Parameter<float>> parameters = own_parameters(model_);
  if (outer_.take(step, parameters)) model_.set_values();
}

}  // namespace droptest::experiments
