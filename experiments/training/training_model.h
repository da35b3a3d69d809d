// SPDX-License-Identifier: Apache-2.0
// One rank's model and optimizer, on the rank's device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/stream_timer.h"
#include "experiments/data/corpus.h"
#include "experiments/spec/run_config.h"
#include "models/gpt2/gpt2.h"
#include "models/parameter.h"
#include "models/phase_times.h"
#include "models/training_step.h"

namespace droptest::experiments {

/// The timers of phases on the processor and on a device. Borrowed; null: no timer.
struct ModelTimers {
  models::PhaseTimes* host = nullptr;
  comm::StreamTimer* device = nullptr;
};

/// The model and its training step, as the trainer calls them. Ranks: all of the group call the same in the same order.
/// Determinism: on the processor with `local` every result is a pure function of config and batches, for any
/// threads_per_rank.
class TrainingModel {
 public:
  /// The run's model on the run's device; its weights are to be set. `tensor_group`: the ranks that share its layers.
  /// `ranks`: the ranks that train it together. Both are borrowed and outlive the model. Ranks: all. Throws:
  /// ConfigError, DeviceError.
  TrainingModel(const RunConfig& config, comm::Communicator& tensor_group, const models::ModelRanks& ranks = {},
                const ModelTimers& timers = {});

  /// Takes one step over these micro-batches, with the run's clipping.
  models::StepResult take_step(std::span<const Batch> micro_batches, double learning_rate,
                               models::UpdateRule::Flags flags = models::UpdateRule::Flags::kReliable);
  /// TrainingStep::follow() and scaler().
  void follow(const models::StepResult& step) { step_.follow(step); }
  const models::LossScaler& scaler() const { return step_.scaler(); }

  /// Mean loss of the batch, as this rank sees it; 0 on a rank without the head.
  double evaluate(const Batch& batch, models::EvaluationDetail detail = models::EvaluationDetail::kLoss);
  const models::Gpt2Config& config() const { return model_.config(); }
  /// Gpt2::detail().
  const std::vector<double>& detail() const { return model_.detail(); }

  /// This rank's parameters in host memory, with their current values; changes take effect with set_values().
  std::span<models::Parameter<float>> parameters();
  /// The model computes with the values in parameters() from now on.
  void set_values() { model_.upload_values(); }
  /// Called after parameters() were read: with offload their copies leave memory.
  void release_parameters() { model_.release_copies(); }
  /// Optimizer::reset().
  void reset_optimizer() { model_.reset_optimizer(); }
  /// Gpt2::end_training().
  void end_training() { model_.end_training(); }
  /// Calls `passed(layer)` whenever a backward pass has gone through a block, or with kOutsideOfBlocks at its end.
  void set_backward_passed(std::function<void(int)> passed) { model_.set_gradient_ready(std::move(passed)); }
  /// TrainingStep::set_computed().
  void set_computed(std::function<void(const models::Action&)> computed) { step_.set_computed(std::move(computed)); }
  /// The pipeline of the model; null: one rank has all layers.
  std::shared_ptr<const models::PipelinePlan> pipeline() const { return model_.pipeline().plan; }
  /// The parameters' places in the whole model. Shapes: one for each of parameters().
  const std::vector<models::Gpt2Tensor>& tensors() const { return model_.tensors(); }
  /// TrainingStep::visit_state(), Gpt2::ops().
  void visit_state(models::StateVisitor& visitor) { step_.visit_state(visitor); }
  models::Ops& ops() { return model_.ops(); }
  models::MemoryUse memory_use() const { return model_.memory_use(); }
  comm::BufferUse slot_use() const { return model_.slot_use(); }
  /// Gpt2::set_replicas().
  void set_replicas(const models::ModelRanks& ranks) { model_.set_replicas(ranks); }
  /// Gpt2::gather_values(), spread_embedding().
  void gather_values() { model_.gather_values(); }
  void spread_embedding() { model_.spread_embedding(); }

 private:
  /// The input of a pass; `documents` gets each token's number of its document.
  models::MicroBatch view_of(const Batch& batch, std::vector<std::int32_t>& documents) const;

  std::optional<int> end_of_text_;  ///< absent: a sequence is one document
  models::Gpt2 model_;
  models::TrainingStep step_;
};

/// Gives the model the weights that the run starts from: its file's, or random ones of its seed. Ranks: all ranks that
/// share its layers. Throws: ConfigError for a file that does not fit.
void set_starting_weights(TrainingModel& model, const RunConfig& config, comm::Communicator& tensor_group);

}  // namespace droptest::experiments
