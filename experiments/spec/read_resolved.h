// SPDX-License-Identifier: Apache-2.0
// A resolved spec in types.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/run_config.h"

namespace droptest::experiments {

/// The section /training of a resolved spec.
void read_training(const nlohmann::json& training, TrainingConfig& config);

/// All sections that no other part of resolve() reads: name, data, backend, training, validation, record.
void read_resolved(const nlohmann::json& spec, RunConfig& config);

}  // namespace droptest::experiments
