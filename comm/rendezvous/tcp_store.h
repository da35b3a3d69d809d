// SPDX-License-Identifier: Apache-2.0
// A launch's keys in the process of rank 0, which the others reach over TCP: neither a shared disk nor a server is
// needed.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/clock.h"
#include "comm/rendezvous/launch_store.h"

namespace droptest::comm {

struct TcpStoreOptions {
  std::string host;  ///< of rank 0, as the others reach it
  int port = 0;
  std::string launch_id;
  int rank = 0;
  /// Longest way to the store, and longest wait for an answer, less the time that other ranks take to agree on a
  /// culprit.
  std::chrono::milliseconds timeout{60000};
};

/// On rank 0, a store that a thread serves at the port, and whose destructor waits, at most for `timeout`, while others
/// still ask for something. Elsewhere, a connection to it, tried again until rank 0 is there.
/// Throws: ConfigError for a port that cannot be or is taken, and where something else answers there; CommError that
/// says what was tried for how long.
/// `clock`: what all waits are measured by; borrowed.
std::unique_ptr<LaunchStore> open_tcp_store(const TcpStoreOptions& options, const Clock& clock = steady_clock());

}  // namespace droptest::comm
