// SPDX-License-Identifier: Apache-2.0
// One rank's model and optimizer, on whatever the rank computes with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "comm/communicator.h"
#include "experiments/data/corpus.h"
#include "experiments/run_config.h"
#include "models/gpt2/gpt2.h"
#include "models/ops/ops_form.h"
#include "models/parameter.h"

namespace droptest::experiments {

/// The element types and sizes of the run's device, on a rank of the run. Needs no device. Throws: ConfigError.
std::unique_ptr<models::OpsForm> ops_form(const RunConfig& config);

/// What training asks of a model. Ranks: all of the group call the same in the same order. The host waits for a device
/// once in a step, in whichever of loss_sum() and gradient_norm() is called first. Determinism: on the processor with
/// `local` every result is a pure function of config and batches, whatever threads_per_rank is.
class TrainingModel {
 public:
  /// The run's model on the run's device; its weights are to be set. `network`: what the model's tensors travel over;
  /// `group`: the same ranks without losses. Both are borrowed and outlive the model. Ranks: all.
  /// Throws: ConfigError, DeviceError.
  TrainingModel(const RunConfig& config, comm::Communicator& network, comm::Communicator& group);

  /// The next forward_backward() starts from gradients of zero, and from no losses.
  void zero_gradients();
  /// Adds scale x the gradient of the batch's mean loss. Blocking: a device may be at work when it returns.
  void forward_backward(const Batch& batch, double scale);
  /// Sum of the mean losses since zero_gradients(), in nats per token, as this rank sees them.
  double loss_sum() { return sums().losses; }
  /// L2 norm of the whole model's gradient, the same on every rank. Traffic is of class control, over the bare group.
  double gradient_norm();
  /// One optimizer step with gradients multiplied by gradient_scale.
  void step(double learning_rate, double gradient_scale) { model_.step(learning_rate, gradient_scale); }

  /// Mean loss of the batch, as this rank sees it.
  double evaluate(const Batch& batch);

  /// This rank's parameters in host memory, with the values of now; changed ones take effect with set_values().
  std::span<models::Parameter<float>> parameters();
  /// The values in parameters() are what the model computes with from now on.
  void set_values() { model_.upload_values(); }

 private:
  const models::Gpt2::StepSums& sums();

  comm::Communicator& group_;
  models::Gpt2 model_;
  std::optional<models::Gpt2::StepSums> sums_;  ///< of the gradients as they are; absent: not asked for yet
};

/// Gives the model the weights that the run starts from: its file's, or random ones of its seed. Ranks: all of `group`.
/// Throws: ConfigError for a file that does not fit.
void set_starting_weights(TrainingModel& model, const RunConfig& config, comm::Communicator& group);

}  // namespace droptest::experiments
