// SPDX-License-Identifier: Apache-2.0
// The section /parallel of a run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Reads the section, which has all defaults, into config.parallel, sharding and pipeline, and leaves out the members
/// that the run has no use for: equal runs have equal resolved specs. A schedule's file becomes its rows. `given`: the
/// section as the spec has it. `where`: the document, for errors.
void resolve_parallel(nlohmann::json& parallel, const nlohmann::json& given, const std::string& where,
                      RunConfig& config, std::vector<std::string>& errors);

/// The layers of the stages of a pipeline, once the number of micro-batches and the device are known.
void resolve_stages(nlohmann::json& parallel, int micro_batches, const std::string& where, RunConfig& config,
                    std::vector<std::string>& errors);

}  // namespace droptest::experiments
