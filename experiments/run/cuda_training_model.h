// SPDX-License-Identifier: Apache-2.0
// Training on a CUDA device.
#pragma once

#include <optional>

#include "experiments/run/training_model.h"
#include "models/gpt2/gpt2_cuda.h"

namespace droptest::experiments {

/// How the run's model computes on its device.
models::Gpt2Cuda::Options cuda_options(const RunConfig& config);

/// The host waits for the device once in a step, in whichever of loss_sum() and gradient_norm() is called first.
class CudaTrainingModel final : public TrainingModel {
 public:
  /// Weights are unspecified until set_values(). Throws: ConfigError, DeviceError.
  CudaTrainingModel(const RunConfig& config, comm::Communicator& network, comm::Communicator& group);

  void zero_gradients() override;
  void forward_backward(const Batch& batch, double scale) override;
  double loss_sum() override { return sums().losses; }
  double gradient_norm() override;
  void step(double learning_rate, double gradient_scale) override;
  double evaluate(const Batch& batch) override;
  std::span<models::Parameter<float>> parameters() override;
  void set_values() override;

 private:
  const models::Gpt2Cuda::StepSums& sums();

  comm::Communicator& group_;
  models::Gpt2Cuda model_;
  std::optional<models::Gpt2Cuda::StepSums> sums_;  ///< of the gradients as they are; absent: not asked for yet
};

}  // namespace droptest::experiments
