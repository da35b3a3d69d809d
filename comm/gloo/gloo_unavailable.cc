// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo_backend.h"
#include "sim/error.h"

namespace droptest::comm {

const bool kGlooBuilt = false;

std::unique_ptr<Communicator> connect_gloo(const ProcessGroupOptions& /*options*/) {
  throw ConfigError("gloo: this build of droptest was configured with DROPTEST_WITH_GLOO=OFF; built: " +
                    built_backends_text());
}

}  // namespace droptest::comm
