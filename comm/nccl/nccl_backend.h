// SPDX-License-Identifier: Apache-2.0
// The `nccl` backend's way in. Ranks are GPUs.
#pragma once

#include <memory>

#include "comm/backend_registry.h"
#include "comm/communicator.h"

namespace droptest::comm {

/// Whether this build has it.
extern const bool kNcclBuilt;

/// Throws: ConfigError that says what is built, where this backend is not.
std::unique_ptr<Communicator> connect_nccl(const ProcessGroupOptions& options);

}  // namespace droptest::comm
