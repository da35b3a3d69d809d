// SPDX-License-Identifier: Apache-2.0
// What the processes of one launch tell each other outside their connections: addresses, ids, and why the group failed.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/clock.h"
#include "comm/rendezvous/rendezvous.h"

namespace droptest::comm {

/// Values by key, seen by all processes of one launch. A key is written once; launches with different ids never see
/// each other's. Thread safety: all methods may be called from any thread.
class LaunchStore {
 public:
  virtual ~LaunchStore() = default;

  /// False where the key has a value already, which stays. Throws: CommError with the system's reason.
  virtual bool set_if_absent(const std::string& key, std::string_view value) = 0;
  /// Throws: CommError with the system's reason.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// Forgets all keys of the launch.
  virtual void clear() = 0;
  /// Where it is, for errors: "directory /shared/run, launch 17".
  virtual const std::string& where() const = 0;
  /// The address at which this machine talks to the other ranks about keys, so that they can reach it there; empty
  /// where it does not talk to them directly.
  virtual std::string own_address() { return ""; }
  /// Where the keys live in a rank's process, and that rank cannot be reached any more: an error's words for it, naming
  /// the rank. Nothing where the store is there, where the rank has left in order, or where no rank holds the keys.
  virtual std::optional<std::string> lost_rank() const { return std::nullopt; }

  /// Waits for a key that `setter` sets ("rank 0"). Throws: CommError that names the key and the setter where it is not
  /// there by the deadline; what get() throws.
  std::string wait_for(const std::string& key, std::string_view setter, std::chrono::milliseconds timeout,
                       const Clock& clock = steady_clock());
};

/// The store that the rendezvous names, as `rank` uses it: of a TCP store, rank 0 is the one that holds the keys.
/// `timeout` bounds the way to it and each request, by the clock, which is borrowed. Throws: ConfigError for a launch
/// id, directory or port that cannot be, and for a port that is taken; CommError where the store cannot be reached.
std::unique_ptr<LaunchStore> open_launch_store(const Rendezvous& rendezvous, int rank,
                                               std::chrono::milliseconds timeout, const Clock& clock = steady_clock());

}  // namespace droptest::comm
