// SPDX-License-Identifier: Apache-2.0
// The section `kernels` of a spec.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/run_config.h"
#include "experiments/spec/file_hashes.h"

namespace droptest::experiments {

/// Leaves out of spec["kernels"] the default implementations of config.device, writes the hashes of shared objects, and
/// sets config.kernels. Shared objects are loaded and checked, and have the name that they give themselves; with
/// `files` null they are not hashed. Adds what is wrong to `errors`.
void resolve_kernels(nlohmann::json& spec, const std::string& where, FileHashes* files, RunConfig& config,
                     std::vector<std::string>& errors);

/// Operation -> the implementation that the run computes with, for its summary: a name, or an object with `library`,
/// `sha256` and `name`.
nlohmann::json kernels_json(const nlohmann::json& resolved_spec, const RunConfig& config);

}  // namespace droptest::experiments
