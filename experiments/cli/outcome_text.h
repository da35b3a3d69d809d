// SPDX-License-Identifier: Apache-2.0
// Numbers and outcomes as people read them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/records/point_text.h"
#include "experiments/spec/run_config.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::cli {

/// A loss in words: "2.4310", "4.1200e+37" from a million on, or "-" if the value is null or absent.
std::string loss_text(const nlohmann::json& value);

/// A duration in words: "1 h 02 min", "3 min 20 s", "12 s".
std::string duration_text(double seconds);

/// The status in a summary, with the marks of its warnings: "completed (resumed)".
std::string status_text(const nlohmann::json& summary);

/// One line on a finished run, from its summary: "completed: validation loss 2.4310 (best 2.4290), ...".
std::string outcome_text(const nlohmann::json& summary);

/// The point of one of the plan's runs: "one bad link, tensor: 4".
std::string point_text(const experiments::SweepPlan& plan, const experiments::PlannedRun& planned);

/// The seeds in words: "7", or "weights 7, data 7, network 8" if they differ.
std::string seeds_text(const experiments::Seeds& seeds);

/// Columns aligned, two spaces apart; the first row is the heading.
std::string table_text(const std::vector<std::vector<std::string>>& rows);

}  // namespace droptest::cli
