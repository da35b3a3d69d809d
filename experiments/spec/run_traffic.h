// SPDX-License-Identifier: Apache-2.0
// What a run goes through: tokens, and how often it makes its planned collectives.
#pragma once

#include <cstdint>

#include "experiments/run_config.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

/// Tokens of a run that evaluation predicts: at least validation.tokens, in whole sequences. Not of examples.
std::uint64_t validation_targets(const RunConfig& config);

/// Tokens after those that the selection loss predicts, likewise; 0: it is not measured.
std::uint64_t selection_targets(const RunConfig& config);

std::uint64_t tokens_of_step(const RunConfig& config);
/// Tokens that all evaluations of a run go through.
std::uint64_t tokens_evaluated(const RunConfig& config);

/// The number of something over the whole run, evaluations included, of which planned_collectives() lists `planned`:
/// collectives, or their packets. `of`: a class that the run uses.
std::uint64_t in_whole_run(const RunConfig& config, sim::TrafficClass of, std::uint64_t planned);

}  // namespace droptest::experiments
