// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/training_model.h"

#include "models/files/safetensors.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/gpt2_weights.h"
#include "models/gpt2/initial_weights.h"
#include "models/ops/cuda_ops.h"
#include "models/ops/host_ops.h"
#include "models/optimizer.h"

namespace droptest::experiments {
namespace {

models::CudaOpsOptions cuda_options(const RunConfig& config) {
  models::CudaOpsOptions options;
  options.precision = config.training.precision;
  options.device = config.device_index;
  return options;
}

models::HostOpsOptions host_options(const RunConfig& config) {
  models::HostOpsOptions options;
  options.precision = config.training.precision;
  options.threads = config.backend.threads_per_rank;
  return options;
}

std::unique_ptr<models::Ops> make_ops(const RunConfig& config, comm::Communicator& network) {
  if (config.device == Device::kCuda) return models::make_cuda_ops(cuda_options(config), network);
  return models::make_host_ops(host_options(config), network);
}

}  // namespace

std::unique_ptr<models::OpsForm> ops_form(const RunConfig& config) {
  if (config.device == Device::kCuda) return models::cuda_ops_form(cuda_options(config), config.parallel.tensor);
  return models::host_ops_form(host_options(config), config.parallel.tensor);
}

TrainingModel::TrainingModel(const RunConfig& config, comm::Communicator& network, comm::Communicator& group)
    : group_(group), model_(config.model, make_ops(config, network), config.training.adamw) {}

void TrainingModel::zero_gradients() {
  model_.zero_gradients();
  sums_.reset();
}

void TrainingModel::forward_backward(const Batch& batch, double scale) {
  model_.forward_backward(batch.tokens, batch.targets, {batch.sequences, batch.length}, scale);
  sums_.reset();
}

const models::Gpt2::StepSums& TrainingModel::sums() {
  if (!sums_) sums_ = model_.step_sums();
  return *sums_;
}

double TrainingModel::gradient_norm() { return models::norm_over_ranks(sums().gradient_squares, group_); }

double TrainingModel::evaluate(const Batch& batch) {
  return model_.evaluate(batch.tokens, batch.targets, {batch.sequences, batch.length});
}

std::span<models::Parameter<float>> TrainingModel::parameters() {
  model_.download(models::Gpt2::Fields::kValues);
  return model_.parameters<float>();
}

void set_starting_weights(TrainingModel& model, const RunConfig& config, comm::Communicator& group) {
  if (config.initial_weights.empty()) {
    models::set_initial_weights<float>(models::gpt2_tensors(config.model, group.world_size(), group.rank()),
                                       config.seeds.weights, model.parameters());
  } else {
    models::load_gpt2_weights<float>(config.model, model.parameters(), group,
                                     models::read_safetensors(config.initial_weights), config.initial_weights);
  }
  model.set_values();
}

}  // namespace droptest::experiments
