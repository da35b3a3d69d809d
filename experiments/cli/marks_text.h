// SPDX-License-Identifier: Apache-2.0
// The marks of runs behind a cell of a table: "completed (resumed)".
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace droptest::cli {

/// The marks in the warnings of these summaries, " (fewer replicas, resumed)", each once, in alphabetical order. Empty
/// without any. A summary may be null.
std::string marks_suffix(std::span<const nlohmann::json> summaries);

}  // namespace droptest::cli
