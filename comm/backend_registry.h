// SPDX-License-Identifier: Apache-2.0
// Backends by name: the one list of all backends.
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

/// The parameters with which a process joins a group of processes.
struct ProcessGroupOptions {
  int rank = 0;
  int world_size = 1;
  int local_rank = -1;  ///< rank among the ranks of this host, for backends that give each a device; -1: they find out
  std::chrono::milliseconds timeout{60000};
  Rendezvous rendezvous;
  /// Network interface with the address of this rank for its peers ("eth0"). Empty: the address by which it reached a
  /// TCP store, else that of the host's name, else loopback.
  std::string interface_name;
  const Clock* clock = &steady_clock();  ///< measures all timeouts; borrowed
};

/// The way in which the ranks of a backend start.
enum class RankKind : std::uint8_t {
  kThreads,    ///< run_ranks() starts them
  kProcesses,  ///< each process calls connect
};

struct BackendEntry {
  std::string_view name;
  std::string_view summary;
  RankKind rank_kind;
  bool built;
  /// Joins the group. For kThreads backends, and for backends that are not built, throws ConfigError that lists the
  /// built ones.
  std::unique_ptr<Communicator> (*connect)(const ProcessGroupOptions&);
};

/// All known backends, in the order in which they are listed.
const std::vector<BackendEntry>& backends();

/// Throws: ConfigError that lists the known names.
const BackendEntry& backend_entry(std::string_view name);

/// The names of the built backends: "local, gloo".
std::string built_backends_text();

}  // namespace droptest::comm
