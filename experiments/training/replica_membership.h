// SPDX-License-Identifier: Apache-2.0
// The replicas that take part in a step of one rank's training.
#pragma once

#include <cstdint>
#include <functional>

#include "comm/lossy/lossy_communicator.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/replica_absences.h"
#include "experiments/training/trainer_part.h"
#include "experiments/training/training_model.h"
#include "models/training_step.h"

namespace droptest::experiments {

/// Replicas leave and come back before steps. Owner: one rank's trainer. Everything is borrowed.
class ReplicaMembership : public TrainerPart {
 public:
  /// `network`: the loss layer of all ranks. `came_back`: called on the ranks of a replica after it has come back.
  ReplicaMembership(const RunConfig& config, ReplicaAbsences& absences, TrainingModel& model,
                    comm::LossyCommunicator& network, std::function<void()> came_back);

  /// The replicas of the step under way, or of the last one.
  const Attendance& now() const { return *now_; }
  /// The run goes on from its checkpoint of that step.
  void resume(std::uint64_t step);
  /// Replicas leave, or come back. If there are fewer replicas than the run has at most, the line gets their number.
  void begin_step(std::uint64_t step, MetricsLine& line) override;
  /// Called after a step. Ranks that take no part get its result from rank 0, which always takes part.
  void share(models::StepResult& result);

 private:
  const RunConfig& config_;
  ReplicaAbsences& absences_;
  TrainingModel& model_;
  comm::LossyCommunicator& network_;
  std::function<void()> came_back_;
  const Attendance* now_;
};

}  // namespace droptest::experiments
