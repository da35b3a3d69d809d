// SPDX-License-Identifier: Apache-2.0
// Which layouts of a run send packets of which traffic classes.
#pragma once

#include <string>
#include <vector>

#include "comm/spec/resolve_network.h"
#include "experiments/spec/run_config.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

/// The classes that a run has packets of.
std::vector<sim::TrafficClass> classes_in_use(const RunConfig& config);

/// The classes that carry values of parameters. Their fills in this run keep what a rank computed with before: its own
/// values, or where it has none (ZeRO 3) the last ones that arrived. Reads the member sharding.
std::vector<comm::ValueClass> value_classes(const RunConfig& config);

/// What a spec wants so that its run has packets of the class, for warnings: "want /parallel/tensor 2 or more".
std::string wanted_for(sim::TrafficClass traffic_class);

}  // namespace droptest::experiments
