// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/launch_store.h"

#include "comm/rendezvous/file_store.h"
#include "comm/rendezvous/redis_store.h"
#include "comm/rendezvous/tcp_store.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr std::chrono::milliseconds kPoll{20};

bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos && name.size() <= 200;
}

}  // namespace

std::string LaunchStore::wait_for(const std::string& key, std::string_view setter, std::chrono::milliseconds timeout,
                                  const Clock& clock) {
  const auto deadline = clock.now() + timeout;
  for (;;) {
    if (std::optional<std::string> value = get(key)) return *std::move(value);
    if (clock.now() >= deadline) {
      throw CommError("rendezvous: " + std::string(setter) + " did not set " + key + " within " +
                      std::to_string(timeout.count()) + " ms in " + where() + "; is it alive?");
    }
    clock.sleep_for(kPoll);
  }
}

std::unique_ptr<LaunchStore> open_launch_store(const Rendezvous& rendezvous, int rank,
                                               std::chrono::milliseconds timeout, const Clock& clock) {
  if (!is_file_name(rendezvous.launch_id)) {
    throw ConfigError("rendezvous: launch id \"" + rendezvous.launch_id +
                      "\", want a name of 1 to 200 characters without /, new for each launch");
  }
  switch (rendezvous.kind) {
    case Rendezvous::Kind::kFile:
      return open_file_store(rendezvous.directory, rendezvous.launch_id);
    case Rendezvous::Kind::kRedis:
      return open_redis_store(rendezvous.host, rendezvous.port, rendezvous.launch_id, timeout);
    case Rendezvous::Kind::kTcp:
      return open_tcp_store({rendezvous.host, rendezvous.port, rendezvous.launch_id, rank, timeout}, clock);
  }
  throw ConfigError("rendezvous: unknown kind");
}

}  // namespace droptest::comm
