// SPDX-License-Identifier: Apache-2.0
// The runs of a sweep that have no result at its end, in words.
#pragma once

#include "experiments/run/sweep_runner.h"
#include "experiments/spec/sweep_plan.h"

namespace droptest::cli {

/// Writes a line on standard error for each run that failed.
void print_failures(const experiments::SweepPlan& plan, const experiments::SweepProgress& progress);

/// Writes a line on standard error for each run that another process is at work on.
void print_busy(const experiments::SweepPlan& plan, const experiments::SweepProgress& progress);

/// Writes the warnings of runs of the user's own programs, a line for each text.
void print_program_warnings(const experiments::SweepPlan& plan, const experiments::SweepProgress& progress);

}  // namespace droptest::cli
