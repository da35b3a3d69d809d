// SPDX-License-Identifier: Apache-2.0
// One rank's model and optimizer, on whatever the rank computes with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "experiments/data/corpus.h"
#include "experiments/run_config.h"
#include "models/parameter.h"

namespace droptest::experiments {

/// What training asks of a model. Ranks: all of the group call the same in the same order.
class TrainingModel {
 public:
  virtual ~TrainingModel() = default;

  /// The next forward_backward() starts from gradients of zero, and from no losses.
  virtual void zero_gradients() = 0;
  /// Adds scale x the gradient of the batch's mean loss. Blocking: a device may be at work when it returns.
  virtual void forward_backward(const Batch& batch, double scale) = 0;
  /// Sum of the mean losses since zero_gradients(), in nats per token, as this rank sees them.
  virtual double loss_sum() = 0;
  /// L2 norm of the whole model's gradient, the same on every rank. Traffic is of class control, over the bare group.
  virtual double gradient_norm() = 0;
  /// One optimizer step with gradients multiplied by gradient_scale.
  virtual void step(double learning_rate, double gradient_scale) = 0;

  /// Mean loss of the batch, as this rank sees it.
  virtual double evaluate(const Batch& batch) = 0;

  /// This rank's parameters in host memory, with the values of now; changed ones take effect with set_values().
  virtual std::span<models::Parameter<float>> parameters() = 0;
  /// The values in parameters() are what the model computes with from now on.
  virtual void set_values() = 0;

 protected:
  TrainingModel() = default;
  TrainingModel(const TrainingModel&) = delete;
  TrainingModel& operator=(const TrainingModel&) = delete;
};

/// The run's model on the run's device; its weights are to be set. `network`: what the model's tensors travel over;
/// `group`: the same ranks without losses. Both are borrowed and outlive the model. Ranks: all.
/// Throws: ConfigError, DeviceError.
std::unique_ptr<TrainingModel> make_training_model(const RunConfig& config, comm::Communicator& network,
                                                   comm::Communicator& group);

/// Gives the model the weights that the run starts from: its file's, or random ones of its seed. Ranks: all of `group`.
/// Throws: ConfigError for a file that does not fit.
void set_starting_weights(TrainingModel& model, const RunConfig& config, comm::Communicator& group);

}  // namespace droptest::experiments
