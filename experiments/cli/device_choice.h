// SPDX-License-Identifier: Apache-2.0
// The device of a run, checked and printed before the run starts.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/spec/run_config.h"

namespace droptest::cli {

/// Writes "cuda, 0: NVIDIA H100 80GB HBM3 (...)", or the reason why "auto" took the CPU, to standard error; nothing for
/// a spec without a device. `spec` is as given. Throws: the errors of require_run_device().
void say_device(const nlohmann::json& spec, const experiments::RunConfig& run);

}  // namespace droptest::cli
