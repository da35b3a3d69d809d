// SPDX-License-Identifier: Apache-2.0
// A model's weights as a safetensors file.
#pragma once

#include <map>
#include <string>

#include "models/files/safetensors.h"

namespace droptest::experiments {

/// Throws: ConfigError for a file that cannot be read, or is none of safetensors.
models::StoredTensors read_weights(const std::string& path);

/// Whole or not at all. Throws: ConfigError with the path and the system's reason.
void write_weights(const std::string& path, const models::StoredTensors& tensors,
                   const std::map<std::string, std::string>& metadata);

}  // namespace droptest::experiments
