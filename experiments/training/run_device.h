// SPDX-License-Identifier: Apache-2.0
// The device that a run asks for, on this machine.
#pragma once

#include <cstdint>
#include <span>

#include "experiments/spec/run_config.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

/// Does nothing for a run on the CPU. Throws: as comm::require_device(), if a run on CUDA finds no device or this build
/// has no CUDA code.
void require_run_device(const RunConfig& config);

/// The run that takes most of a device's memory, among the runs that compute on CUDA; the first run if none does.
/// `runs` has at least one run. Throws: as require_run_device().
const RunConfig& most_demanding(std::span<const PlannedRun> runs);

/// The number of runs like this one that fit into the memory that is free on its devices now, at least 1. Opens a
/// context on them. Throws: ConfigError with both sizes if not one fits; DeviceError.
int runs_that_fit(const RunConfig& config);

/// The number of runs at a time. It is `asked`, unless that is 0: then it is one for each core that this process may
/// use, or few if all share a GPU, and no more than fit into its memory. `config`: the config of the most demanding
/// run. Throws: as runs_that_fit(), even if `asked` is not 0.
int jobs_at_once(int asked, const RunConfig& config);

}  // namespace droptest::experiments
