// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_backend.h"
#include "sim/error.h"

namespace droptest::comm {

const bool kNcclBuilt = false;

std::unique_ptr<Communicator> connect_nccl(const ProcessGroupOptions& /*options*/) {
  throw ConfigError(
      "nccl: this build of droptest has no NCCL backend, which is built where CUDA, Gloo and NCCL are found "
      "(DROPTEST_WITH_NCCL); built: " +
      built_backends_text());
}

int nccl_device(const Communicator& /*communicator*/) { return 0; }

}  // namespace droptest::comm
