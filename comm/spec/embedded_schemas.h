// SPDX-License-Identifier: Apache-2.0
// The schema file of this folder, as text in the binary.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace droptest::comm {

/// File names and texts. Defined in a source file that cmake/embed_schemas.cmake makes.
const std::vector<std::pair<std::string_view, std::string_view>>& embedded_schemas();

}  // namespace droptest::comm
