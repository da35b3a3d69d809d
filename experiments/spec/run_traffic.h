// SPDX-License-Identifier: Apache-2.0
// What a run goes through: tokens, and how often it makes its planned collectives.
#pragma once

#include <cstdint>

#include "experiments/spec/dry_run.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Tokens of a run that evaluation predicts: at least validation.tokens, in whole sequences. Not of examples.
std::uint64_t validation_targets(const RunConfig& config);

/// Tokens after those that the selection loss predicts, likewise; 0: it is not measured.
std::uint64_t selection_targets(const RunConfig& config);

std::uint64_t tokens_of_step(const RunConfig& config);
/// Tokens that all evaluations of a run go through.
std::uint64_t tokens_evaluated(const RunConfig& config);

/// How often a run makes a planned collective, evaluations over a lossy network included: all groups together with
/// `planned.counts`, a rank on average with those of its share.
std::uint64_t times_in_run(const RunConfig& config, const PlannedCollective& planned, const CallCounts& counts);

}  // namespace droptest::experiments
