// SPDX-License-Identifier: Apache-2.0
// Whether processes can meet where a rendezvous says, tried before any of them needs it.
#pragma once

#include <chrono>
#include <string>

#include "comm/backend_registry.h"

namespace droptest::comm {

/// Opens the store that the rendezvous names under a launch id of its own, writes a key, reads it back and removes it.
/// Returns where the store is, for people. `timeout` bounds each request.
/// Throws: ConfigError or CommError with the system's reason, also where no backend is built that meets in a store.
std::string probe_rendezvous(const Rendezvous& rendezvous, std::chrono::milliseconds timeout);

}  // namespace droptest::comm
