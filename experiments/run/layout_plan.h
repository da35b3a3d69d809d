// SPDX-License-Identifier: Apache-2.0
// The ranks of a run: coordinates, groups, parameters, and the collectives of each layer.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The output of `droptest plan --layout --json` (docs/cli.md has the members). A pure function of model, layout,
/// sharding, batch and precision: no device or file is needed, and its time depends only on the number of different
/// ranks.
nlohmann::json layout_plan(const RunConfig& config);

/// Runs a forward pass without memory, over one sequence of one token, on each rank that differs from others, and
/// compares the file of starting weights with the model. Returns one line that says so. Throws: ConfigError that names
/// the tensor, the shape got and the shape wanted.
std::string check_shapes(const RunConfig& config);

}  // namespace droptest::experiments
