// SPDX-License-Identifier: Apache-2.0
// The member /model/pretrained of a spec: a folder of Hugging Face's files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/spec/file_hashes.h"
#include "models/gpt2/gpt2_config.h"

namespace droptest::experiments {

/// Takes the extents of the folder's model into /model of a spec with defaults, which may name equal ones, and with
/// `files` the hashes of its weights and of its vocabulary; checks these and /data/tokens against each other. Appends
/// to `errors`. Nothing without /model/pretrained.
void resolve_pretrained(nlohmann::json& spec, const nlohmann::json& given, const std::string& where, FileHashes* files,
                        std::vector<std::string>& errors);

/// Throws: ConfigError where the sidecar of a token file (docs/formats.md) names another vocabulary than the folder
/// has.
void check_vocabulary(const std::string& token_file, const std::string& folder);

}  // namespace droptest::experiments
