// SPDX-License-Identifier: Apache-2.0
// The members of a spec's recovery that act on whole messages.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "comm/lossy/network.h"

namespace droptest::comm {

/// Removes the members that have no effect, so that equal runs have one resolved spec. `recovery` is valid.
nlohmann::json normal_recovery(nlohmann::json recovery);

/// A spec's recovery as a ClassRecovery; absent members as in a network without recovery.
ClassRecovery class_recovery(const nlohmann::json& recovery);

}  // namespace droptest::comm
