// SPDX-License-Identifier: Apache-2.0
// Schedules of the learning rate that differ from their names.
#pragma once

#include <vector>

#include "experiments/spec/idle_network.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Warnings about a decay without a step at a lower rate, and about a rate that rises to its end. Reads the
/// member training.
std::vector<Warning> odd_schedule(const RunConfig& config);

}  // namespace droptest::experiments
