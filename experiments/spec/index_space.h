// SPDX-License-Identifier: Apache-2.0
// Whether the packets of a whole run have indices on their links.
#pragma once

#include <string>
#include <vector>

#include "experiments/spec/dry_run.h"
#include "experiments/spec/run_config.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

/// Why a run would use up the packet indices of a link (docs/paths.md).
struct IndexRefusal {
  sim::TrafficClass of;
  /// The member of the class's network at fault; empty: /training/steps.
  std::string member;
  std::string reason;
};

/// The refusals of a run: at most one for each class with a network. The numbers of messages and packets are upper
/// bounds over all links. `run`: the config's dry run.
std::vector<IndexRefusal> index_refusals(const RunConfig& config, const DryRun& run);

}  // namespace droptest::experiments
