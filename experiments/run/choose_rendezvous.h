// SPDX-License-Identifier: Apache-2.0
// The rendezvous of a launch's ranks, from the spec and the launcher's variables.
#pragma once

#include <optional>
#include <string>

#include "comm/rendezvous/launch_environment.h"
#include "comm/rendezvous/rendezvous.h"

namespace droptest::experiments {

/// The rendezvous of the spec, completed. If the spec names none: TCP at MASTER_ADDR and MASTER_PORT, or files in
/// `folder` if neither variable is set. The launch id is left empty. Throws: ConfigError for variables that are needed
/// and missing or wrong.
comm::Rendezvous choose_rendezvous(const std::optional<comm::Rendezvous>& named, const comm::Environment& environment,
                                   const std::string& folder);

}  // namespace droptest::experiments
