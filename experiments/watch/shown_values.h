// SPDX-License-Identifier: Apache-2.0
// What is shown of records, read without the rest: lines and statistics have many more numbers, and a folder may have
// thousands of runs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace droptest::experiments {

/// Members of lines of metrics.jsonl of which the last value is shown.
const std::vector<std::string>& shown_members();

/// Of a line of metrics.jsonl: step, tokens, seconds and shown_members(), of divergence the rms, of losses the packets
/// and the lost ones, of ranks memory, time and bytes. Null where one of them is not of its type: the schema says more.
nlohmann::json shown_of_line(const std::string& text);

/// Of loss_statistics.json: class -> packets and lost ones. Null as above.
nlohmann::json shown_of_statistics(const std::string& text);

}  // namespace droptest::experiments
