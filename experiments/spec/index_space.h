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
  /// Of the class's network; empty: /training/steps.
  std::string member;
  std::string reason;
};

/// At most one for each class with a network. Numbers of messages are those that no link exceeds. `run` is of the
/// config.
std::vector<IndexRefusal> index_refusals(const RunConfig& config, const DryRun& run);

}  // namespace droptest::experiments
