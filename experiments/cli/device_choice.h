// SPDX-License-Identifier: Apache-2.0
// What runs compute with, checked and said before they start.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "experiments/run_config.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::cli {

/// "cuda, 0: NVIDIA H100 80GB HBM3 (...)", or why "auto" took the CPU; empty for a spec that says nothing of devices.
/// `spec`: as given. Throws: as require_run_device().
std::string device_text(const nlohmann::json& spec, const experiments::RunConfig& run);

/// The first of the runs that computes on CUDA; the first one where none does. `runs` has at least one.
const experiments::RunConfig& most_demanding(std::span<const experiments::PlannedRun> runs);

/// Writes device_text() to standard error, where it is not empty.
void say_device(const nlohmann::json& spec, const experiments::RunConfig& run);

/// Runs at once where nobody said: one for each core that this process may use, but few where all share a GPU.
int default_jobs(const experiments::RunConfig& run);

}  // namespace droptest::cli
