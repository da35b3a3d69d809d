// SPDX-License-Identifier: Apache-2.0
// The task of a spec and its labelled examples (docs/classification.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/file_hashes.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Resolves /task and the members of /data that belong to it, with the labels and hashes of the files where there are
/// `files`; sets the classes of config.model. Appends to `errors`. Nothing to do for a language model.
void resolve_examples(nlohmann::json& spec, const nlohmann::json& given, const std::string& where, FileHashes* files,
                      RunConfig& config, std::vector<std::string>& errors);

/// The section's examples as a config has them.
ExampleConfig read_example_config(const nlohmann::json& data);

}  // namespace droptest::experiments
