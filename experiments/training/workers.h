// SPDX-License-Identifier: Apache-2.0
// The workers of a run with outer steps: replicas that train independently between outer steps.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/training_model.h"
#include "models/outer_step.h"
#include "sim/state_visitor.h"

namespace droptest::experiments {

/// Takes the outer steps.
/// Owner: one rank's trainer. Ranks: the ranks with the same part of the model, one of each worker. Everything is
/// borrowed.
class Workers {
 public:
  /// `ranks`: one rank of each worker. `network`: the loss layer of all ranks.
  Workers(const RunConfig& config, comm::Communicator& ranks, comm::LossyCommunicator& network, TrainingModel& model);

  /// The model's current values become the reference of the next outer step.
  void begin();
  /// Called after a worker's own step. The result becomes the mean over the workers. Takes an outer step if it is due,
  /// unless a worker skipped its update.
  void finish_step(std::uint64_t step, models::StepResult& result);
  /// Waits for all messages under way, before visit_state(). Ranks: all.
  void settle() { outer_.settle(); }
  void visit_state(sim::StateVisitor& visitor) { outer_.visit_state(visitor); }
  /// Bytes that the outer steps take now.
  std::uint64_t bytes() const { return outer_.bytes(); }

 private:
  comm::Communicator& ranks_;
  comm::LossyCommunicator& network_;
  TrainingModel& model_;
  models::OuterStep outer_;
};

}  // namespace droptest::experiments
