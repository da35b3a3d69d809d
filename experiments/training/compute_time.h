// SPDX-License-Identifier: Apache-2.0
// How the compute time of a step passes on the virtual clock while the model's passes run.
#pragma once

#include <functional>
#include <optional>

#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/lossy_communicator.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/training_model.h"

namespace droptest::experiments {

/// The time model of the run, whose compute time passes partly at the begin of a step and partly as follow_passes()
/// says; absent: the run has no clock.
std::optional<comm::TimeModel> time_model(const RunConfig& config);

/// Lets the clock of `network` follow the passes of the model. Returns what is to be called after each of the model's
/// actions; empty: nothing. All is borrowed.
std::function<void(const models::Action&)> follow_passes(const RunConfig& config, comm::LossyCommunicator& network,
                                                         TrainingModel& model);

}  // namespace droptest::experiments
