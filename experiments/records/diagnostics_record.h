// SPDX-License-Identifier: Apache-2.0
// diagnostics.json: the effect of loss in each layer, and the gaps between losses. docs/records.md is the format.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "comm/lossy/network.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "experiments/records/run_records.h"

namespace droptest::experiments {

/// `statistics` as LossyCommunicator::collect_statistics gave them; `network`: as configured.
nlohmann::json diagnostics_json(const std::vector<comm::ClassStatistics>& statistics, const comm::Network& network);

/// Checks the record against its schema (CheckError: a bug of ours) and writes it whole or not at all.
void write_diagnostics_record(const RunDirectory& directory, const nlohmann::json& record);

}  // namespace droptest::experiments
