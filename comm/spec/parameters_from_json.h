// SPDX-License-Identifier: Apache-2.0
// JSON -> sim::Parameters, so that components below need no JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/parameters.h"

namespace droptest::comm {

/// The value tree, each node with its place: `where` is "file: /pointer" of `value`; members append "/name".
sim::Parameters parameters_from_json(const nlohmann::json& value, const std::string& where);

}  // namespace droptest::comm
