// SPDX-License-Identifier: Apache-2.0
// The overrides of single links in a network section.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/lossy/link_overrides.h"

namespace droptest::comm {

/// The links of one override; the caller reads its loss. `where` names the override in messages. Errors (a range that
/// falls, a rank that the run does not have, both kinds of groups) are appended to `errors`.
LinkOverride links_of(const nlohmann::json& override_of_links, int world_size, const std::string& where,
                      std::vector<std::string>& errors);

}  // namespace droptest::comm
