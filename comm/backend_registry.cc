// SPDX-License-Identifier: Apache-2.0
#include "comm/backend_registry.h"

#include <algorithm>

#include "comm/gloo/gloo_backend.h"
#include "comm/nccl/nccl_backend.h"
#include "comm/udp/udp_backend.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

std::unique_ptr<Communicator> connect_local(const ProcessGroupOptions& /*options*/) {
  throw ConfigError("local: its ranks are threads of one process and do not connect; built: " + built_backends_text());
}

}  // namespace

const std::vector<BackendEntry>& backends() {
  static const std::vector<BackendEntry> entries = {
      {"local", "ranks are threads of one process; reductions in rank order (default)", RankKind::kThreads, true,
       connect_local},
      {"gloo", "ranks are processes over TCP; rendezvous by TCP, file or Redis; the same bits as local",
       RankKind::kProcesses, kGlooBuilt, connect_gloo},
      {"nccl", "ranks are processes with a GPU each; rendezvous as gloo; sums in NCCL's order", RankKind::kProcesses,
       kNcclBuilt, connect_nccl},
      {"udp", "ranks are processes over real datagrams that really get lost", RankKind::kProcesses, kUdpBuilt,
       connect_udp},
  };
  return entries;
}

std::string built_backends_text() {
  std::string text;
  for (const BackendEntry& entry : backends()) {
    if (entry.built) text += (text.empty() ? "" : ", ") + std::string(entry.name);
  }
  return text;
}

const BackendEntry& backend_entry(std::string_view name) {
  const auto found =
      std::find_if(backends().begin(), backends().end(), [name](const auto& entry) { return entry.name == name; });
  if (found != backends().end()) return *found;
  std::string known;
  for (const BackendEntry& entry : backends()) known += (known.empty() ? "" : ", ") + std::string(entry.name);
  throw ConfigError("backend: got \"" + std::string(name) + "\", want one of " + known);
}

}  // namespace droptest::comm
