// SPDX-License-Identifier: Apache-2.0
// Warnings about lost values of parameters.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "experiments/spec/idle_network.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Warnings about value_classes() that put zeros in the place of lost parameters. `network`: the section as its user
/// wrote it. `config`: sharding and network.
std::vector<Warning> zeroed_values(const nlohmann::json& network, const RunConfig& config);

}  // namespace droptest::experiments
