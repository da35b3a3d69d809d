// SPDX-License-Identifier: Apache-2.0
// The section `kernels` of a spec.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/file_hashes.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Leaves out of spec["kernels"] the default implementations of config.device, but for attention on CUDA
/// (resolve_default_attention()), writes the hashes of shared objects, and
/// sets config.kernels. Shared objects are loaded and checked, and have the name that they give themselves; with
/// `files` null they are not hashed. Adds what is wrong to `errors`.
void resolve_kernels(nlohmann::json& spec, const std::string& where, FileHashes* files, RunConfig& config,
                     std::vector<std::string>& errors);

/// Whether the spec names no kernel of attention, or the first one of the device, which takes every shape.
bool is_default_attention(const RunConfig& config);

/// Attention's default on a device depends on the whole spec: to be called when the rest of `config` is there. Leaves
/// the default out of spec and config, and adds to `errors` where the named kernel does not serve the spec.
void resolve_default_attention(nlohmann::json& spec, const std::string& where, RunConfig& config,
                               std::vector<std::string>& errors);

/// Whether attention is cuDNN's, which the spec does not name: on a device, for dense attention of whole sequences with
/// 16-bit operands and heads that it takes, without dropout.
bool uses_cudnn(const RunConfig& config);
/// config.kernels, and attention by cuDNN if uses_cudnn().
models::KernelChoices kernels_in_use(const RunConfig& config);
/// The name of attention's kernel on a device, as checkpoints record it; empty where the machine never decides it.
std::string recorded_attention(const RunConfig& config);

/// Operation -> the implementation that the run computes with, for its summary: a name, or an object with `library`,
/// `sha256` and `name`.
nlohmann::json kernels_json(const nlohmann::json& resolved_spec, const RunConfig& config);

}  // namespace droptest::experiments
