// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous_probe.h"

#include <unistd.h>

#include "comm/gloo/launch_store.h"
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
  const std::unique_ptr<LaunchStore> store = open_launch_store(own, timeout);
  const bool first = store->set_if_absent(kKey, kValue);
  const std::optional<std::string> value = store->get(kKey);
  store->clear();
  if (!first || !value || *value != kValue) {
    throw CommError("rendezvous: " + store->where() + ": what was written is not what is read");
  }
  return rendezvous.kind == Rendezvous::Kind::kFile
             ? "directory " + rendezvous.directory
             : "Redis at " + rendezvous.host + ":" + std::to_string(rendezvous.port);
}

}  // namespace droptest::comm
