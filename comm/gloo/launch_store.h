// SPDX-License-Identifier: Apache-2.0
// What the processes of one launch tell each other outside their connections: addresses, and why the group failed.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/backend_registry.h"

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
};

/// Files in a directory of the launch: `<directory>/<launch_id>/<key>`, each written whole and then linked in place.
std::unique_ptr<LaunchStore> open_file_store(const std::string& directory, const std::string& launch_id);

/// One Redis hash, `droptest/<launch_id>`, which expires after a day. `timeout` bounds each request.
std::unique_ptr<LaunchStore> open_redis_store(const std::string& host, int port, const std::string& launch_id,
                                              std::chrono::milliseconds timeout);

/// The store that the rendezvous names. Throws: ConfigError for a launch id or directory that is empty or no file name;
/// CommError where the store cannot be reached.
std::unique_ptr<LaunchStore> open_launch_store(const Rendezvous& rendezvous, std::chrono::milliseconds timeout);

}  // namespace droptest::comm
