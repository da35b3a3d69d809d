// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a launch meet, from what the spec and the launcher say.
#pragma once

#include <optional>
#include <string>

#include "comm/rendezvous/launch_environment.h"
#include "comm/rendezvous/rendezvous.h"

namespace droptest::experiments {

/// What the spec names, completed; where it names nothing, TCP at MASTER_ADDR and MASTER_PORT, or, where neither is
/// set, files in `folder`. The launch id is left empty. Throws: ConfigError for variables that are needed and missing
/// or wrong.
comm::Rendezvous choose_rendezvous(const std::optional<comm::Rendezvous>& named, const comm::Environment& environment,
                                   const std::string& folder);

}  // namespace droptest::experiments
