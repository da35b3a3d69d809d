// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/choose_rendezvous.h"

#include "sim/error.h"

namespace droptest::experiments {
namespace {

using Kind = comm::Rendezvous::Kind;

[[noreturn]] void missing(const std::string& member, const std::string& variable) {
  throw ConfigError("/backend/rendezvous/" + member + ": a rendezvous by TCP needs it, here or as " + variable +
                    " in the environment");
}

comm::Rendezvous completed_tcp(comm::Rendezvous rendezvous, const comm::Environment& environment) {
  if (rendezvous.host.empty()) {
    const std::optional<std::string> host = comm::master_host(environment);
    if (!host) missing("host", "MASTER_ADDR");
    rendezvous.host = *host;
  }
  if (rendezvous.port == 0) {
    const std::optional<int> port = comm::master_port(environment);
    if (!port) missing("port", "MASTER_PORT");
    rendezvous.port = *port;
  }
  return rendezvous;
}

}  // namespace

comm::Rendezvous choose_rendezvous(const std::optional<comm::Rendezvous>& named, const comm::Environment& environment,
                                   const std::string& folder) {
  comm::Rendezvous rendezvous;
  if (named) {
    rendezvous = *named;
  } else if (environment.contains("MASTER_ADDR") || environment.contains("MASTER_PORT")) {
    rendezvous.kind = Kind::kTcp;
    rendezvous.host.clear();
    rendezvous.port = 0;
  }
  if (rendezvous.kind == Kind::kTcp) return completed_tcp(std::move(rendezvous), environment);
  if (rendezvous.kind == Kind::kFile && rendezvous.directory.empty()) rendezvous.directory = folder;
  return rendezvous;
}

}  // namespace droptest::experiments
