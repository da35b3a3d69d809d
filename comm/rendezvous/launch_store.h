// SPDX-License-Identifier: Apache-2.0
// The data that processes of one launch share outside their connections: addresses, ids, and the failure of the group.
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
/// each other's keys. Thread safety: all methods may be called from any thread.
class LaunchStore {
 public:
  virtual ~LaunchStore() = default;

  /// Returns false if the key has a value already, which stays. Throws: CommError with the system's reason.
  virtual bool set_if_absent(const std::string& key, std::string_view value) = 0;
  /// Throws: CommError with the system's reason.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// Forgets all keys of the launch. Any number of ranks may call it once each rank has set its last key, even while
  /// the call that sets it has not returned.
  virtual void clear() = 0;
  /// The place of the store, for errors: "directory /shared/run, launch 17".
  virtual const std::string& where() const = 0;
  /// The address that this machine uses for the keys' traffic with the other ranks, so that they can reach it there;
  /// empty without such traffic.
  virtual std::string own_address() { return ""; }
  /// The text of an error that names the rank that holds the keys, if that rank cannot be reached any more. Absent if
  /// the store is there, if the rank has left in order, or if no rank holds the keys.
  virtual std::optional<std::string> lost_rank() const { return std::nullopt; }

  /// Waits for a key that `setter` sets ("rank 0"). Throws: CommError that names the key and the setter if it is not
  /// there by the deadline; the errors of get().
  std::string wait_for(const std::string& key, std::string_view setter, std::chrono::milliseconds timeout,
                       const Clock& clock = steady_clock());
};

/// The store that the rendezvous names, for `rank`; rank 0 holds the keys of a TCP store. `timeout` bounds the
/// connection to it and each request, by the clock, which is borrowed. Throws: ConfigError for an invalid launch id,
/// directory or port, and for a port that is taken; CommError if the store cannot be reached.
std::unique_ptr<LaunchStore> open_launch_store(const Rendezvous& rendezvous, int rank,
                                               std::chrono::milliseconds timeout, const Clock& clock = steady_clock());

}  // namespace droptest::comm
