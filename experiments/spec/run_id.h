// SPDX-License-Identifier: Apache-2.0
// The id of a run: a hash of all values that can change its result.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace droptest::experiments {

/// First 16 hex digits of the SHA-256 of the resolved spec, without the members that cannot change a result
/// (docs/specs.md).
std::string run_id_of(const nlohmann::json& resolved_spec);

/// Whether the value at this pointer ("/record/links") is part of the run id.
bool changes_results(std::string_view pointer);
/// Whether this value or one of its members is: of "/memory" the object {"attention_chunk": 64}.
bool changes_results(const std::string& pointer, const nlohmann::json& value);

}  // namespace droptest::experiments
