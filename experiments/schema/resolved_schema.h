// SPDX-License-Identifier: Apache-2.0
// The schema of resolved specs, which follows from that of specs.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace droptest::experiments {

/// The schema of resolved specs. A member with a default is always there, and no rule has a default. The keyword
/// x-resolved of a rule names a further difference: "absent" (input only), "always" (there without a default),
/// "optional" (not always there in spite of its default), or a JSON merge patch (RFC 7396) of the rule itself.
nlohmann::json resolved_schema(const nlohmann::json& spec_schema);

}  // namespace droptest::experiments
