// SPDX-License-Identifier: Apache-2.0
// The device that a run asks for, on this machine.
#pragma once

#include <cstdint>
#include <span>

#include "experiments/spec/run_config.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::experiments {

/// Does nothing for a run on the CPU. Throws: as comm::require_device(), where a run on CUDA finds no device or this
/// build has no CUDA code.
void require_run_device(const RunConfig& config);

/// Of the runs that compute on CUDA the one that takes most of a device's memory; the first where none does. `runs` has
/// at least one. Throws: as require_run_device().
const RunConfig& most_demanding(std::span<const PlannedRun> runs);

/// Runs like this one that fit at once into the memory that is free on its devices now, at least 1. Opens a context on
/// them. Throws: ConfigError with both sizes where not one fits; DeviceError.
int runs_that_fit(const RunConfig& config);

/// Runs at once: `asked`, or where that is 0, one for each core that this process may use, but few where all share a
/// GPU, and no more than fit into its memory. `config`: of the most demanding run. Throws: as runs_that_fit(), also
/// where a number is asked for.
int jobs_at_once(int asked, const RunConfig& config);

}  // namespace droptest::experiments
