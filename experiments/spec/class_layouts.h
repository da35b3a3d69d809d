// SPDX-License-Identifier: Apache-2.0
// Which layouts of a run send packets of which traffic classes.
#pragma once

#include <cstdint>
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

/// Messages of a rank in a step that are alike, each with a name of its own, where `times` of them were planned for all
/// groups together (planned_collectives()).
std::uint64_t names_of_rank(const RunConfig& config, sim::TrafficClass traffic_class, std::uint64_t times);

/// What a spec wants so that its run has packets of the class, for warnings: "want /parallel/tensor 2 or more".
std::string wanted_for(sim::TrafficClass traffic_class);

}  // namespace droptest::experiments
