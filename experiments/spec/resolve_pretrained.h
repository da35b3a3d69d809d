// SPDX-License-Identifier: Apache-2.0
// The member /model/pretrained of a spec: a folder of Hugging Face's files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/run_config.h"
#include "experiments/spec/file_hashes.h"

namespace droptest::experiments {

/// Takes the extents of the folder's model into /model of a spec with defaults, which may name equal ones, and with
/// `files` the hashes of its weights and of its vocabulary; checks these and /data/tokens against each other. Appends
/// to `errors`. Nothing without /model/pretrained.
void resolve_pretrained(nlohmann::json& spec, const nlohmann::json& given, const std::string& where, FileHashes* files,
                        std::vector<std::string>& errors);

/// Compares the classification head that the weights of the spec's start have with the spec's: task, number and names
/// of classes. A file without one is fine. Appends to `errors`. Reads headers alone.
void check_stored_head(const nlohmann::json& spec, const std::string& where, const RunConfig& config,
                       std::vector<std::string>& errors);

/// Throws: ConfigError where the weights have a classification head and their folder names other classes than these.
void check_class_names(const std::string& folder, const std::vector<std::string>& labels);

/// Throws: ConfigError where the sidecar of a token file (docs/formats.md) names another vocabulary than the folder
/// has.
void check_vocabulary(const std::string& token_file, const std::string& folder);

}  // namespace droptest::experiments
