// SPDX-License-Identifier: Apache-2.0
// The tokens of a run, and the number of its planned collectives.
#pragma once

#include <cstdint>

#include "experiments/spec/dry_run.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Tokens of a run that evaluation predicts: at least validation.tokens, in whole sequences. Examples do not count.
std::uint64_t validation_targets(const RunConfig& config);

/// Tokens that the selection loss predicts, after those of validation: at least validation.selection_tokens, in whole
/// sequences; 0: it is not measured.
std::uint64_t selection_targets(const RunConfig& config);

std::uint64_t tokens_of_step(const RunConfig& config);
/// Tokens that all evaluations of a run go through.
std::uint64_t tokens_evaluated(const RunConfig& config);

/// How often a run makes a planned collective, evaluations over a lossy network included. With `planned.counts`: all
/// groups together; with the counts of a rank's share: that rank, on average.
std::uint64_t times_in_run(const RunConfig& config, const PlannedCollective& planned, const CallCounts& counts);

}  // namespace droptest::experiments
