// SPDX-License-Identifier: Apache-2.0
// What a run samples after some of its steps.
#pragma once

#include "comm/lossy/lossy_communicator.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/replica_absences.h"
#include "experiments/training/training_model.h"

namespace droptest::experiments {

/// Puts the divergence of the replicas, each class's error since the last sample, and its losses so far into the line.
/// Ranks: all of the network.
void sample(const RunConfig& config, const Attendance& there, TrainingModel& model, comm::LossyCommunicator& network,
            MetricsLine& line);

}  // namespace droptest::experiments
