// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/cpu_training_model.h"

namespace droptest::experiments {

CpuTrainingModel::CpuTrainingModel(const RunConfig& config, comm::Communicator& network, comm::Communicator& group)
    : group_(group),
      model_(config.model, network, config.backend.threads_per_rank, config.training.precision),
      optimizer_(model_.parameters(), config.training.adamw, model_.team()) {}

void CpuTrainingModel::zero_gradients() {
  model_.zero_gradients();
  loss_sum_ = 0;
}

void CpuTrainingModel::forward_backward(const Batch& batch, double scale) {
  loss_sum_ += model_.forward_backward(batch.tokens, batch.targets, batch.sequences, batch.length, scale);
}

double CpuTrainingModel::gradient_norm() {
  return models::global_gradient_norm<float>(model_.parameters(), group_, model_.team());
}

double CpuTrainingModel::evaluate(const Batch& batch) {
  return model_.evaluate(batch.tokens, batch.targets, batch.sequences, batch.length);
}

}  // namespace droptest::experiments
