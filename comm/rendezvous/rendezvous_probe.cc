// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/rendezvous_probe.h"

#include <unistd.h>

#include "comm/rendezvous/launch_store.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr const char* kKey = "probe";
constexpr const char* kValue = "here";

}  // namespace

std::string probe_rendezvous(const Rendezvous& rendezvous, std::chrono::milliseconds timeout) {
  Rendezvous own = rendezvous;
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  own.launch_id = "probe-" + std::to_string(::getpid()) + "-" + std::to_string(now);
  const std::unique_ptr<LaunchStore> store = open_launch_store(own, 0, timeout);
  const bool first = store->set_if_absent(kKey, kValue);
  const std::optional<std::string> value = store->get(kKey);
  store->clear();
  if (!first || !value || *value != kValue) {
    throw CommError("rendezvous: " + store->where() + ": a value that was written differs when it is read");
  }
  const std::string address = rendezvous.host + ":" + std::to_string(rendezvous.port);
  switch (rendezvous.kind) {
    case Rendezvous::Kind::kFile:
      return "directory " + rendezvous.directory;
    case Rendezvous::Kind::kRedis:
      return "Redis at " + address;
    case Rendezvous::Kind::kTcp:
      return "rank 0's store at " + address;
  }
  DROPTEST_CHECK(false, "unknown kind of rendezvous");
}

}  // namespace droptest::comm
