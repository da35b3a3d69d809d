// SPDX-License-Identifier: Apache-2.0
// Runs that have a result, but not all records that are asked for now.
#pragma once

#include <string>

#include "experiments/spec/sweep_plan.h"

namespace CLI {
class App;
}

namespace droptest::cli {

/// What becomes of them.
enum class Again { kNo, kYes };

/// Adds --again. `again` outlives the parsing.
void add_again_option(CLI::App& command, Again& again);

/// kYes: takes the results of such runs away, so that they are run again. Throws: ConfigError with kNo, that names the
/// records and what to do.
void require_records(const experiments::SweepPlan& plan, const std::string& out, Again again);

}  // namespace droptest::cli
