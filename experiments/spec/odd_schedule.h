// SPDX-License-Identifier: Apache-2.0
// Schedules of the learning rate that do something else than their names say.
#pragma once

#include <vector>

#include "experiments/spec/idle_network.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Warnings about a decay without a step at a lower rate, and about a rate that rises to its end. Reads the training.
std::vector<Warning> odd_schedule(const RunConfig& config);

}  // namespace droptest::experiments
