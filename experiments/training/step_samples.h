// SPDX-License-Identifier: Apache-2.0
// The measurements that a run samples after some of its steps.
#pragma once

#include "comm/lossy/lossy_communicator.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/replica_membership.h"
#include "experiments/training/step_profile.h"
#include "experiments/training/trainer_part.h"
#include "experiments/training/training_model.h"

namespace droptest::experiments {

/// Writes three measurements into the line: the divergence of the replicas, each class's error since the last sample,
/// and each class's losses so far.
/// Owner: one rank's trainer. Ranks: all of the network. Everything is borrowed.
class StepSamples : public TrainerPart {
 public:
  StepSamples(const RunConfig& config, const ReplicaMembership& there, TrainingModel& model,
              comm::LossyCommunicator& network, StepProfile& profile)
      : config_(config), there_(there), model_(model), network_(network), profile_(profile) {}

  void after_update(FinishedStep& finished) override;

 private:
  const RunConfig& config_;
  const ReplicaMembership& there_;
  TrainingModel& model_;
  comm::LossyCommunicator& network_;
  StepProfile& profile_;
};

}  // namespace droptest::experiments
