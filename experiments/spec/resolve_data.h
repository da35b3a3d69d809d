// SPDX-License-Identifier: Apache-2.0
// The shards of a spec, the steps of its epochs and its schedule of learning rates.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/file_hashes.h"

namespace droptest::experiments {

/// Gives `/data` of the spec with defaults the files of its shards: sizes, numbers of tokens and, with `files`,
/// checksums. Without shards, takes their members away. Errors name `where` and the JSON pointer.
void resolve_shards(nlohmann::json& spec, const nlohmann::json& given, const std::string& where, FileHashes* files,
                    std::vector<std::string>& errors);

/// The steps of `/training/epochs`. `spec` has its shards, batches and sequences. Where it has no list of files, and
/// they are not there, the steps are those of the spec, or more.
void resolve_epochs(nlohmann::json& spec, const nlohmann::json& given, const std::string& where, int replicas,
                    std::vector<std::string>& errors);

/// `/training/schedule` and the learning rate at its end. `spec` has its steps. Cosine, the default, is absent.
void resolve_schedule(nlohmann::json& spec, const nlohmann::json& given, const std::string& where,
                      std::vector<std::string>& errors);

}  // namespace droptest::experiments
