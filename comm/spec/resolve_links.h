// SPDX-License-Identifier: Apache-2.0
// The overrides of single links in a network section.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/lossy/link_overrides.h"

namespace droptest::comm {

/// The links that one override is for; its loss is left to the caller. `where` names the override in messages.
/// What is wrong (a range that falls, a rank that the run does not have, both kinds of groups) is appended to `errors`.
LinkOverride links_of(const nlohmann::json& override_of_links, int world_size, const std::string& where,
                      std::vector<std::string>& errors);

}  // namespace droptest::comm
