// SPDX-License-Identifier: Apache-2.0
// The section /start of a spec: the checkpoint that a run begins with.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace droptest::experiments {

/// Adds step and epoch, as the manifest has them, to the section of a spec with defaults; appends to `errors`.
void resolve_start(nlohmann::json& spec, const std::string& where, std::vector<std::string>& errors);

}  // namespace droptest::experiments
