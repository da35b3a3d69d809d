// SPDX-License-Identifier: Apache-2.0
// Backends by name: the one list that a new backend is added to.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/clock.h"
#include "comm/communicator.h"
#include "comm/rendezvous/rendezvous.h"

namespace droptest::comm {

/// What a process needs to join a group whose ranks are processes.
struct ProcessGroupOptions {
  int rank = 0;
  int world_size = 1;
  int local_rank = -1;  ///< among the ranks of this host, for backends that give each a device; -1: they find out
  std::chrono::milliseconds timeout{60000};
  Rendezvous rendezvous;
  /// Network interface at whose address peers reach this rank ("eth0"); empty: the address by which it reached a TCP
  /// store, else that of the host's name, else loopback.
  std::string interface_name;
  const Clock* clock = &steady_clock();  ///< what all timeouts are measured by; borrowed
};

/// How the ranks of a backend come to be.
enum class RankKind : std::uint8_t {
  kThreads,    ///< run_ranks() starts them
  kProcesses,  ///< each process calls connect
};

struct BackendEntry {
  std::string_view name;
  std::string_view summary;
  RankKind rank_kind;
  bool built;
  /// Joins the group; for kThreads backends, and backends that are not built, throws ConfigError that says what is.
  std::unique_ptr<Communicator> (*connect)(const ProcessGroupOptions&);
};

/// All known backends, in the order in which they are listed.
const std::vector<BackendEntry>& backends();

/// Throws: ConfigError that lists the known names.
const BackendEntry& backend_entry(std::string_view name);

/// The names of those that are built: "local, gloo".
std::string built_backends_text();

}  // namespace droptest::comm
