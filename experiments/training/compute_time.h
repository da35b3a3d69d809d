// SPDX-License-Identifier: Apache-2.0
// The compute time of a step on the virtual clock: it passes while the model's passes run.
#pragma once

#include <functional>
#include <optional>

#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/lossy_communicator.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/training_model.h"

namespace droptest::experiments {

/// The time model of the run; absent: the run has no clock. Its compute time passes partly at the begin of a step, and
/// partly during the passes (follow_passes()).
std::optional<comm::TimeModel> time_model(const RunConfig& config);

/// Lets the clock of `network` follow the passes of the model. Returns the function to call after each of the model's
/// actions; empty: there is none. Everything is borrowed.
std::function<void(const models::Action&)> follow_passes(const RunConfig& config, comm::LossyCommunicator& network,
                                                         TrainingModel& model);

}  // namespace droptest::experiments
