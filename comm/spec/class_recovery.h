// SPDX-License-Identifier: Apache-2.0
// The part of a spec's recovery that acts on whole messages.
#pragma once

#include <nlohmann/json.hpp>

#include "comm/lossy/network.h"

namespace droptest::comm {

/// Without the members that change nothing, so that runs that are alike have one resolved spec. `recovery` is valid.
nlohmann::json normal_recovery(nlohmann::json recovery);

/// The same in types; absent members as in a network without recovery.
ClassRecovery class_recovery(const nlohmann::json& recovery);

}  // namespace droptest::comm
