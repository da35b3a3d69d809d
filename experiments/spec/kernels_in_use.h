// SPDX-License-Identifier: Apache-2.0
// The section `kernels` of a spec.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "experiments/spec/run_config.h"
#include "models/ops/kernel_registry.h"

namespace droptest::experiments {

inline constexpr const char* kAttention = "attention";
inline constexpr const char* kCudnn = "cudnn";

models::KernelDevice kernel_device_of(const RunConfig& config);

/// Whether the spec names no kernel of attention, or names the device's first one, which takes every shape.
bool is_default_attention(const RunConfig& config);

/// Whether cuDNN can compute the attention of the run.
bool cudnn_serves(const RunConfig& config);
/// Whether the run uses cuDNN's attention, which the spec does not name: the default on a device for dense attention of
/// whole sequences with 16-bit operands and heads that cuDNN takes, without dropout.
bool uses_cudnn(const RunConfig& config);
/// config.kernels, and attention by cuDNN if uses_cudnn().
models::KernelChoices kernels_in_use(const RunConfig& config);
/// The name of attention's kernel on a device, as checkpoints record it; empty if the machine never decides it.
std::string recorded_attention(const RunConfig& config);

/// Operation -> the implementation that the run computes with, for its summary: a name, or an object with `library`,
/// `sha256` and `name`.
nlohmann::json kernels_json(const nlohmann::json& resolved_spec, const RunConfig& config);

}  // namespace droptest::experiments
