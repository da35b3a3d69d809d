// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous_probe.h"
#include "sim/error.h"

namespace droptest::comm {

std::string probe_rendezvous(const Rendezvous& /*rendezvous*/, std::chrono::milliseconds /*timeout*/) {
  throw ConfigError("rendezvous: this build of droptest was configured with DROPTEST_WITH_GLOO=OFF; built: " +
                    built_backends_text());
}

}  // namespace droptest::comm
