// SPDX-License-Identifier: Apache-2.0
// loss_statistics.json (docs/records.md): counts of packets, losses and bursts.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "comm/lossy/network.h"
#include "comm/lossy/statistics/loss_statistics.h"

namespace droptest::experiments {

/// The halves of a collective in records, by sim::Half.
inline constexpr std::array kHalfNames = {"reduce", "gather"};
const comm::HalfNetwork& half_of(const comm::ClassNetwork& network, std::size_t half);

/// Mean burst in theory; NaN if links or steps differ.
double mean_burst_packets(const comm::HalfNetwork& half);

/// `statistics` as LossyCommunicator::collect_statistics() or merge_statistics() gave them; `network`: as configured.
/// The member `links` is written if a class has any.
nlohmann::json loss_statistics_json(const std::vector<comm::ClassStatistics>& statistics, const comm::Network& network);

}  // namespace droptest::experiments
