// SPDX-License-Identifier: Apache-2.0
// The sections /failures and /elastic of a spec: parts of a run that fail while it trains.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Checks the section of a spec with defaults, whose /parallel and /training are resolved into `config` and `spec`, and
/// leaves out failures without effect: equal runs have equal resolved specs. Appends to `errors`.
void resolve_failures(nlohmann::json& spec, const std::string& where, const RunConfig& config,
                      std::vector<std::string>& errors);
/// The same of the section /elastic. An elastic run has the defaults of /restart.
void resolve_elastic(nlohmann::json& spec, const std::string& where, const RunConfig& config,
                     std::vector<std::string>& errors);

/// The data ranks that take no part in a step, in order. A pure function of its arguments.
std::vector<int> absent_replicas(const std::vector<ReplicaAbsence>& absences, std::uint64_t step);

}  // namespace droptest::experiments
