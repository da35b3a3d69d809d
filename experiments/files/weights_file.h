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
/// model.safetensors.index.json lists, in the order of their names. Throws: ConfigError if the folder has neither.
std::vector<std::string> weight_files(const std::string& folder);

/// The weights of a safetensors file, or of such a folder. Throws: ConfigError for a file that cannot be read or is no
/// safetensors file, and for shards with other tensors than their index says.
models::StoredTensors read_weights(const std::string& path);

/// The shape of a tensor, only from headers; absent: there is no such tensor. Throws: the errors of read_weights().
std::optional<std::vector<std::uint64_t>> stored_shape(const std::string& path, const std::string& tensor);

/// Writes the file whole or not at all. Throws: ConfigError with the path and the system's reason.
void write_weights(const std::string& path, const models::StoredTensors& tensors,
                   const std::map<std::string, std::string>& metadata);

}  // namespace droptest::experiments
