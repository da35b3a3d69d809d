// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known name that is closest to a mistyped one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace droptest::comm {

/// The known name with the fewest edits (insert, delete, replace, swap neighbours) to `name`; empty if none is close.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

/// `did you mean "x"? known KIND: a, b, c`, without the question if no name is close.
std::string known_names_hint(std::string_view name, const std::vector<std::string>& known, std::string_view kind);

}  // namespace droptest::comm
