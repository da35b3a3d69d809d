// SPDX-License-Identifier: Apache-2.0
// Whether processes can meet where a rendezvous says, tried before any of them needs it.
#pragma once

#include <chrono>
#include <string>

#include "comm/rendezvous/rendezvous.h"

namespace droptest::comm {

/// Opens the store that the rendezvous names under a launch id of its own, writes a key, reads it back and removes it.
/// Returns where the store is, for people. `timeout` bounds each request.
/// A store of rank 0 is opened as rank 0 does it, so that its port is bound for a moment: only rank 0's machine can
/// tell. Throws: ConfigError or CommError with the system's reason.
std::string probe_rendezvous(const Rendezvous& rendezvous, std::chrono::milliseconds timeout);

}  // namespace droptest::comm
