// SPDX-License-Identifier: Apache-2.0
// What is trained of the model, and at which learning rate (docs/classification.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Resolves /training/class_weights, to a number for each class, /training/lora, and /training/layer_decay and
/// /training/tensors, to a list of patterns with factors; sets those of config.model. Appends to `errors`.
void resolve_tensor_rules(nlohmann::json& spec, const nlohmann::json& given, const std::string& where,
                          RunConfig& config, std::vector<std::string>& errors);

}  // namespace droptest::experiments
