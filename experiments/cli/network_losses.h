// SPDX-License-Identifier: Apache-2.0
// The packets that a command's network has lost, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "comm/lossy/statistics/loss_statistics.h"
#include "experiments/spec/run_config.h"

namespace droptest::cli {

/// Throws: ConfigError for a command's --network with a spec of one rank, which sends no packet.
void require_ranks_of_network(const experiments::RunConfig& config);

/// Losses by class: {"tp_forward": {"packets": .., "lost": .., "configured_rate": .., "realised_rate": ..}}.
nlohmann::json losses_json(const std::vector<comm::ClassStatistics>& statistics);
/// Writes a line on standard error for each class.
void say_losses(const std::vector<comm::ClassStatistics>& statistics);

}  // namespace droptest::cli
