// SPDX-License-Identifier: Apache-2.0
// The shown values of records, read without the rest: lines and statistics have many more numbers, and a folder may
// have thousands of runs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace droptest::experiments {

/// Members of lines of metrics.jsonl of which the last value is shown.
const std::vector<std::string>& shown_members();

/// The shown values of a line of metrics.jsonl: step, tokens, seconds and shown_members(); of divergence only the rms,
/// of losses the packets and the lost ones, of ranks memory, time and bytes. Null if one of them is not of its type:
/// the schema then has the reason.
nlohmann::json shown_of_line(const std::string& text);

/// The shown values of loss_statistics.json: packets and lost ones by class. Null if one of them is not of its type.
nlohmann::json shown_of_statistics(const std::string& text);

}  // namespace droptest::experiments
