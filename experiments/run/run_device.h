// SPDX-License-Identifier: Apache-2.0
// The device that a run asks for, on this machine.
#pragma once

#include "experiments/run_config.h"

namespace droptest::experiments {

/// Does nothing for a run on the CPU. Throws: what comm::require_device() throws where a run on CUDA finds no device,
/// or this build has no CUDA code.
void require_run_device(const RunConfig& config);

}  // namespace droptest::experiments
