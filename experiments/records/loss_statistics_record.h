// SPDX-License-Identifier: Apache-2.0
// loss_statistics.json (docs/records.md): counts of packets, losses and bursts.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "comm/lossy/network.h"
#include "comm/lossy/statistics/loss_statistics.h"

namespace droptest::experiments {

/// `statistics` as LossyCommunicator::collect_statistics() or merge_statistics() gave them; `network`: as configured.
/// `links` are written where a class has any.
nlohmann::json loss_statistics_json(const std::vector<comm::ClassStatistics>& statistics, const comm::Network& network);

}  // namespace droptest::experiments
