// SPDX-License-Identifier: Apache-2.0
// Which layouts of a run send packets of which traffic classes.
#pragma once

#include <string>
#include <vector>

#include "experiments/run_config.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

/// The classes that a run has packets of.
std::vector<sim::TrafficClass> classes_in_use(const RunConfig& config);

/// The dimension in which the ranks of the class's groups differ, of the gradients with sequence ranks: data.
/// Throws: CheckError for the class control.
comm::ParallelDimension group_of(const RunConfig& config, sim::TrafficClass traffic_class);

/// What a spec wants so that its run has packets of the class, for warnings: "want /parallel/tensor 2 or more".
std::string wanted_for(sim::TrafficClass traffic_class);

}  // namespace droptest::experiments
