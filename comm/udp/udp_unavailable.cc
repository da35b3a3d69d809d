// SPDX-License-Identifier: Apache-2.0
#include "comm/udp/udp_backend.h"
#include "sim/error.h"

namespace droptest::comm {

const bool kUdpBuilt = false;

std::unique_ptr<Communicator> connect_udp(const ProcessGroupOptions& /*options*/) {
  throw ConfigError("udp: this build of droptest has no UDP backend; built: " + built_backends_text());
}

}  // namespace droptest::comm
