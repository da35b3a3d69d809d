// SPDX-License-Identifier: Apache-2.0
// Runs that have a result, but not all records that are asked for now.
#pragma once

#include <string>

#include "experiments/records/run_records.h"
#include "experiments/spec/sweep_plan.h"

namespace CLI {
class App;
}

namespace droptest::cli {

/// Adds --again. `again` outlives the parsing.
void add_again_option(CLI::App& command, experiments::Again& again);

/// Throws: ConfigError where there are such runs, that names the records and what to do.
void require_records(const experiments::SweepPlan& plan, const std::string& out);

}  // namespace droptest::cli
