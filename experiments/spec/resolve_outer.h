// SPDX-License-Identifier: Apache-2.0
// The section `outer` of a spec: workers that train alone between outer steps.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Sets config.outer from spec["outer"], and removes members without effect. `config` has the layout. Adds the errors
/// of combinations that have no meaning to `errors`.
void resolve_outer(nlohmann::json& spec, const std::string& where, RunConfig& config, std::vector<std::string>& errors);

/// After the network was resolved: workers need to know whose weights have arrived.
void check_outer_network(const std::string& where, const std::string& pointer, const RunConfig& config,
                         std::vector<std::string>& errors);

/// The class whose messages can be late after a quorum of others.
std::optional<sim::TrafficClass> class_with_quorum(const nlohmann::json& spec);

/// After the network and the clock were resolved: the messages for which the outer steps wait.
void resolve_quorum(const nlohmann::json& spec, const std::string& where, RunConfig& config,
                    std::vector<std::string>& errors);

}  // namespace droptest::experiments
