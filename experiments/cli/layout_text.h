// SPDX-License-Identifier: Apache-2.0
// A layout as tables.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace droptest::cli {

/// The text of experiments::layout_plan(): ranks, groups, tensors, and the collectives of each layer. Consecutive
/// blocks that are alike share a line.
std::string layout_text(const nlohmann::json& plan);

}  // namespace droptest::cli
