// SPDX-License-Identifier: Apache-2.0
// A launch's keys in the process of rank 0, which the others reach over TCP, without a shared disk or a server.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/clock.h"
#include "comm/rendezvous/launch_store.h"

namespace droptest::comm {

struct TcpStoreOptions {
  std::string host;  ///< host of rank 0, for the others
  int port = 0;
  std::string launch_id;
  int rank = 0;
  /// Longest connection attempt, and longest wait for an answer, less the time that other ranks take to agree on a
  /// culprit.
  std::chrono::milliseconds timeout{60000};
};

/// Opens the store. On rank 0, a thread serves it at the port, and its destructor waits, at most for `timeout`, while
/// others still send requests. Elsewhere it is a connection to rank 0, retried until rank 0 is there. Throws:
/// ConfigError for a port that is invalid or taken, and if another program answers there; CommError that names the
/// attempts and their time. `clock` measures all waits; borrowed.
std::unique_ptr<LaunchStore> open_tcp_store(const TcpStoreOptions& options, const Clock& clock = steady_clock());

}  // namespace droptest::comm
