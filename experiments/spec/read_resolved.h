// SPDX-License-Identifier: Apache-2.0
// A resolved spec in types.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Reads the section /data of a spec with defaults; its shards may lack their files.
void read_data(const nlohmann::json& data, DataConfig& config);

/// Reads the members of RunConfig::visit_members(), and what no struct lists: the sections that no resolver reads.
void read_resolved(const nlohmann::json& spec, RunConfig& config);

}  // namespace droptest::experiments
