// SPDX-License-Identifier: Apache-2.0
// A plan as tables.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace droptest::cli {

/// Of `droptest plan --json`: each run, the memory of the largest one, and the time of those that are to do.
std::string plan_text(const nlohmann::json& plan);

}  // namespace droptest::cli
