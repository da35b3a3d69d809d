// SPDX-License-Identifier: Apache-2.0
// The entry of the `udp` backend. Ranks are processes over real datagrams.
#pragma once

#include <memory>

#include "comm/backend_registry.h"
#include "comm/communicator.h"

namespace droptest::comm {

/// Whether this build has the backend.
extern const bool kUdpBuilt;

/// Throws: ConfigError that lists the built backends, if this one is not built.
std::unique_ptr<Communicator> connect_udp(const ProcessGroupOptions& options);

}  // namespace droptest::comm
