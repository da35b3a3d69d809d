// SPDX-License-Identifier: Apache-2.0
// A launch's keys in a Redis server.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/rendezvous/launch_store.h"

namespace droptest::comm {

/// The store in one Redis hash, `droptest/<launch_id>`, which expires after a day. `timeout` bounds each request.
/// Throws: ConfigError for an invalid port, and in a build without Redis; CommError if no server answers.
std::unique_ptr<LaunchStore> open_redis_store(const std::string& host, int port, const std::string& launch_id,
                                              std::chrono::milliseconds timeout);

}  // namespace droptest::comm
