// SPDX-License-Identifier: Apache-2.0
// The id of a run: a hash of all values that can change its result. The members that a lossless twin leaves out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace droptest::experiments {

/// First 16 hex digits of the SHA-256 of the resolved spec, without the members that cannot change a result
/// (docs/specs.md).
std::string run_id_of(const nlohmann::json& resolved_spec);

/// Whether the value at this pointer ("/record/links") is part of the run id.
bool changes_results(std::string_view pointer);
/// Whether this value or one of its members is part of the run id, as is {"attention_chunk": 64} of "/memory".
bool changes_results(const std::string& pointer, const nlohmann::json& value);

/// The pointers of the resolved spec in which the run and its twin may differ: a run with the same weights and batches
/// that loses no packet. The twin of a run that compresses messages compresses them in the same way; every other twin
/// is independent of the network and of its seed. "*" stands for each entry of a list. Pointers of absent members are
/// left out. An object that has no other members takes no part in the comparison either (docs/records.md).
std::vector<std::string> twin_omits(const nlohmann::json& resolved_spec);

/// Whether another /seeds/network can give the run another result, other counts or another virtual time.
bool uses_network_seed(const nlohmann::json& resolved_spec);

}  // namespace droptest::experiments
