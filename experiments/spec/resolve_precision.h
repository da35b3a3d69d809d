// SPDX-License-Identifier: Apache-2.0
// /training/precision and /training/loss_scale: rules of several members, and their one resolved form.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// `training` has the schema's defaults. Afterwards `precision` is absent
/// or an object, absent where all types are float32; `loss_scale` is absent or an object, absent where losses are not
/// scaled. Errors, each as `where` and the pointer, are added.
void resolve_precision(nlohmann::json& training, Device device, const std::string& where,
                       std::vector<std::string>& errors);

}  // namespace droptest::experiments
