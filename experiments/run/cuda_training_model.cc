// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/cuda_training_model.h"

namespace droptest::experiments {

models::Gpt2Cuda::Options cuda_options(const RunConfig& config) {
  models::Gpt2Cuda::Options options;
  options.precision = config.training.precision;
  options.adamw = config.training.adamw;
  options.device = config.device_index;
  return options;
}

CudaTrainingModel::CudaTrainingModel(const RunConfig& config, comm::Communicator& network, comm::Communicator& group)
    : group_(group), model_(config.model, network, cuda_options(config)) {}

void CudaTrainingModel::zero_gradients() {
  model_.zero_gradients();
  sums_.reset();
}

void CudaTrainingModel::forward_backward(const Batch& batch, double scale) {
  model_.forward_backward(batch.tokens, batch.targets, batch.sequences, batch.length, scale);
  sums_.reset();
}

const models::Gpt2Cuda::StepSums& CudaTrainingModel::sums() {
  if (!sums_) sums_ = model_.step_sums();
  return *sums_;
}

double CudaTrainingModel::gradient_norm() { return models::norm_over_ranks(sums().gradient_squares, group_); }

void CudaTrainingModel::step(double learning_rate, double gradient_scale) {
  model_.step(learning_rate, gradient_scale);
}

double CudaTrainingModel::evaluate(const Batch& batch) {
  return model_.evaluate(batch.tokens, batch.targets, batch.sequences, batch.length);
}

std::span<models::Parameter<float>> CudaTrainingModel::parameters() {
  model_.download(models::Gpt2Cuda::Fields::kValues);
  return model_.host_parameters();
}

void CudaTrainingModel::set_values() { model_.upload_values(); }

}  // namespace droptest::experiments
