// SPDX-License-Identifier: Apache-2.0
// Runs whose number of replicas changes while they train (docs/checkpoints.md).
#pragma once

#include <string>
#include <vector>

#include "experiments/process/child_process.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The replicas of a launch with so many ranks; the spec's number where the run is not elastic. `launcher`: who started
/// the ranks, for the error. Throws: ConfigError for a number of ranks that the run cannot have.
int replicas_of_launch(const RunConfig& config, int ranks, const std::string& launcher);

/// The replicas of the next attempt, after one has died: one fewer, as far as the spec allows it.
int replicas_after_failure(const RunConfig& config, int replicas);

/// Whether a replica could have left its state (rescue.h) when a rank of these ended: all of its own ranks ended by
/// themselves, with an error.
bool could_leave_state(const RunConfig& config, int replicas, const std::vector<ExitStatus>& ranks);

}  // namespace droptest::experiments
