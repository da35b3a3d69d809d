// SPDX-License-Identifier: Apache-2.0
// Protected layers of a spec that have no message of their own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "experiments/spec/idle_network.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Warnings about `protect.layers` of a class that travels in buckets (dp_gradient, parameter_gather). A block gets a
/// warning if every bucket with its elements has elements of another block, too: such a message belongs to no layer.
/// `network`: the section as its user wrote it. `config`: only model, parallel, sharding, pipeline and network are
/// read.
std::vector<Warning> idle_protection(const nlohmann::json& network, const RunConfig& config);

}  // namespace droptest::experiments
