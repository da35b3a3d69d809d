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

/// Attention's default on a device depends on the whole spec: to be called when the rest of `config` is there. Leaves
/// the default out of spec and config, and adds to `errors` where the named kernel does not serve the spec.
void resolve_default_attention(nlohmann::json& spec, const std::string& where, RunConfig& config,
                               std::vector<std::string>& errors);

/// config.kernels with those of the defaults that the spec decides. On a device that is attention by cuDNN for dense
/// attention of whole sequences with 16-bit operands and such heads as it takes, without dropout.
models::KernelChoices kernels_in_use(const RunConfig& config);

/// The same for the ranks' agreement (attention_agreement.h): whether attention is cuDNN's.
bool uses_cudnn(const RunConfig& config);

/// Operation -> the implementation that the run computes with, for its summary: a name, or an object with `library`,
/// `sha256` and `name`.
nlohmann::json kernels_json(const nlohmann::json& resolved_spec, const RunConfig& config);

}  // namespace droptest::experiments
