// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/redis_store.h"
#include "sim/error.h"

namespace droptest::comm {

std::unique_ptr<LaunchStore> open_redis_store(const std::string& /*host*/, int /*port*/,
                                              const std::string& /*launch_id*/, std::chrono::milliseconds /*timeout*/) {
  throw ConfigError(
      "rendezvous: this build of droptest has no Redis (DROPTEST_WITH_GLOO=OFF); there are files and TCP");
}

}  // namespace droptest::comm
