// SPDX-License-Identifier: Apache-2.0
// The replicas of a run with outer steps, which train alone between these.
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

/// Owner: one rank's trainer. Ranks: those with the same part of the model in all workers. Everything is borrowed.
class Workers {
 public:
  /// `ranks`: one of each worker. `network`: the loss layer of all ranks.
  Workers(const RunConfig& config, comm::Communicator& ranks, comm::LossyCommunicator& network, TrainingModel& model);

  /// The model's values of now are the reference of the next outer step.
  void begin();
  /// After a worker's own step: the result becomes the mean over the workers, and an outer step that is due is taken
  /// unless a worker skipped its update.
  void finish_step(std::uint64_t step, models::StepResult& result);
  /// Waits for all messages under way, before visit_state(). Ranks: all.
  void settle() { outer_.settle(); }
  void visit_state(sim::StateVisitor& visitor) { outer_.visit_state(visitor); }
  /// Memory of the outer steps now.
  std::uint64_t bytes() const { return outer_.bytes(); }

 private:
  comm::Communicator& ranks_;
  comm::LossyCommunicator& network_;
  TrainingModel& model_;
  models::OuterStep outer_;
};

}  // namespace droptest::experiments
