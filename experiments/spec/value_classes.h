// SPDX-License-Identifier: Apache-2.0
// Traffic classes that carry values of parameters.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "comm/spec/resolve_network.h"
#include "experiments/spec/idle_network.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The classes that carry values of parameters. Their fills in this run keep the values that a rank computed with
/// before: its own ones, or the last ones that arrived if it has none (ZeRO 3). Reads the member sharding.
std::vector<comm::ValueClass> value_classes(const RunConfig& config);

/// Warnings about value_classes() that put zeros in the place of lost parameters. `network`: the section as its user
/// wrote it. `config`: sharding and network.
std::vector<Warning> zeroed_values(const nlohmann::json& network, const RunConfig& config);

}  // namespace droptest::experiments
