// SPDX-License-Identifier: Apache-2.0
// Path "auto" of a spec -> the paths that take the least virtual time.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/spec/resolve_network.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Replaces "auto" in the section `network` of a spec, for each class of `in_use`: `path` becomes the path with the
/// least virtual time for the class's largest collective, and `sized_paths` lists the paths that are faster for
/// smaller collectives. All paths of a class have the loss, fills and recovery of the first. The path `contribution`
/// is never chosen: it needs a network that adds up.
/// The time is the mean over some simulated collectives of ranks that begin together; lost packets do not count.
/// `run`: the config's dry run. `config`: only parallel and seeds are read. `time`: the spec's section, or null.
/// Appends complete messages to `errors` if no path can be chosen; `where` names the document.
/// Determinism: a pure function of its arguments.
void choose_paths(nlohmann::json& network, const std::vector<sim::TrafficClass>& in_use, const DryRun& run,
                  const comm::ClassRoles& roles, const RunConfig& config, const nlohmann::json& time,
                  const std::string& where, std::vector<std::string>& errors);

}  // namespace droptest::experiments
