// SPDX-License-Identifier: Apache-2.0
// Training on the processor's cores.
#pragma once

#include "experiments/run/training_model.h"
#include "models/gpt2/gpt2.h"
#include "models/optimizer.h"

namespace droptest::experiments {

/// Determinism: with `local` every result is a pure function of config and batches, whatever threads_per_rank is.
class CpuTrainingModel final : public TrainingModel {
 public:
  /// Weights are zeros. Throws: ConfigError.
  CpuTrainingModel(const RunConfig& config, comm::Communicator& network, comm::Communicator& group);

  void zero_gradients() override;
  void forward_backward(const Batch& batch, double scale) override;
  double loss_sum() override { return loss_sum_; }
  double gradient_norm() override;
  void step(double learning_rate, double gradient_scale) override { optimizer_.step(learning_rate, gradient_scale); }
  double evaluate(const Batch& batch) override;
  std::span<models::Parameter<float>> parameters() override { return model_.parameters(); }
  void set_values() override {}

 private:
  comm::Communicator& group_;
  models::Gpt2<float> model_;
  models::AdamW<float> optimizer_;
  double loss_sum_ = 0;
};

}  // namespace droptest::experiments
