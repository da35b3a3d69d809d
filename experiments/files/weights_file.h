// SPDX-License-Identifier: Apache-2.0
// A model's weights as a safetensors file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/files/safetensors.h"

namespace droptest::experiments {

/// The files with the weights of a folder of Hugging Face's files: model.safetensors, or the shards that
/// model.safetensors.index.json lists, in the order of their names. Throws: ConfigError where it has neither.
std::vector<std::string> weight_files(const std::string& folder);

/// Of a safetensors file, or of such a folder. Throws: ConfigError for a file that cannot be read, or is none of
/// safetensors; for shards with other tensors than their index says.
models::StoredTensors read_weights(const std::string& path);

/// The shape of a tensor, from headers alone; absent: there is no such tensor. Throws: as read_weights().
std::optional<std::vector<std::uint64_t>> stored_shape(const std::string& path, const std::string& tensor);

/// Whole or not at all. Throws: ConfigError with the path and the system's reason.
void write_weights(const std::string& path, const models::StoredTensors& tensors,
                   const std::map<std::string, std::string>& metadata);

}  // namespace droptest::experiments
