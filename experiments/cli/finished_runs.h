// SPDX-License-Identifier: Apache-2.0
// Finished runs that lack records which the spec asks for: the commands refuse them, or run them again.
#pragma once

#include <string>

#include "experiments/records/run_records.h"
#include "experiments/spec/sweep_plan.h"

namespace CLI {
class App;
}

namespace droptest::cli {

/// Prints a warning.
void say_unread(const std::string& text);

/// Adds --again. `again` outlives the parsing.
void add_again_option(CLI::App& command, experiments::Again& again);

/// Adds --accept-stopped, which outlives the parsing.
void add_accept_option(CLI::App& command, experiments::Stopped& stopped);

/// Throws: ConfigError that names the missing records and the flag --again, if there are such runs.
void require_records(const experiments::SweepPlan& plan, const std::string& out);

}  // namespace droptest::cli
