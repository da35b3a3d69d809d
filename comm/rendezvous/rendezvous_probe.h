// SPDX-License-Identifier: Apache-2.0
// A test of a rendezvous before processes need it.
#pragma once

#include <chrono>
#include <string>

#include "comm/rendezvous/rendezvous.h"

namespace droptest::comm {

/// Opens the store that the rendezvous names under a launch id of its own, writes a key, reads it back and removes it.
/// Returns the place of the store, for people. `timeout` bounds each request. A store of rank 0 is opened as rank 0
/// does it, so that its port is bound for a moment: the test works only on rank 0's machine. Throws: ConfigError or
/// CommError with the system's reason.
std::string probe_rendezvous(const Rendezvous& rendezvous, std::chrono::milliseconds timeout);

}  // namespace droptest::comm
