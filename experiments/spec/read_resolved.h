// SPDX-License-Identifier: Apache-2.0
// A resolved spec in types.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Reads the section /data of a spec with defaults; its shards may lack their files.
void read_data(const nlohmann::json& data, DataConfig& config);

/// The examples of a section /data.
ExampleConfig read_example_config(const nlohmann::json& data);

/// The file patterns of a member, which may be one pattern, a list, or absent.
std::vector<std::string> file_patterns(const nlohmann::json& data, const char* member);

/// Reads the section /training of a resolved spec.
void read_training(const nlohmann::json& training, TrainingConfig& config);

/// Reads all sections that no other part of resolve() reads: name, data, backend, training, validation, record.
void read_resolved(const nlohmann::json& spec, RunConfig& config);

}  // namespace droptest::experiments
