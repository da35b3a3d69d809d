// SPDX-License-Identifier: Apache-2.0
// What specs of droptest's own training and those of a user's command have in common.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Writes out the three seeds of `spec`, which has its defaults, in the place of its seed, and returns them. `given`:
/// the spec as its user wrote it. Errors are added to the list.
Seeds resolve_seeds(nlohmann::json& spec, const nlohmann::json& given, const std::string& where,
                    std::vector<std::string>& errors);

/// Adds an error for each member that asks for more than one run, or for another file, and removes these members.
void refuse_several_runs(nlohmann::json& spec, const std::string& where, std::vector<std::string>& errors);

}  // namespace droptest::experiments
