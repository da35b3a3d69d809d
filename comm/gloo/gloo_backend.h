// SPDX-License-Identifier: Apache-2.0
// The entry of the `gloo` backend. Ranks are processes over TCP: docs/backends.md.
#pragma once

#include <memory>

#include "comm/backend_registry.h"
#include "comm/communicator.h"

namespace droptest::comm {

/// Whether this build has the backend.
extern const bool kGlooBuilt;

/// Joins the group that the rendezvous names. Returns when all ranks are connected to each other. Throws: ConfigError
/// for options that are wrong, and for a launch id that was used before; CommError that names the ranks that did not
/// come within the timeout. Without the backend: ConfigError that lists the built ones.
std::unique_ptr<Communicator> connect_gloo(const ProcessGroupOptions& options);

}  // namespace droptest::comm
