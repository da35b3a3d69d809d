// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/kernels_in_use.h"

#include <nlohmann/json.hpp>

#include "models/kernels/attention_graph.h"
#include "models/ops/kernel_registry.h"
#include "models/precision.h"
#include "sim/error.h"

namespace droptest::experiments {
using nlohmann::json;

models::KernelDevice kernel_device_of(const RunConfig& config) {
  return config.device == Device::kCuda ? models::KernelDevice::kCuda : models::KernelDevice::kHost;
}

bool cudnn_serves(const RunConfig& config) {
  return config.device == Device::kCuda && !config.model.attention.is_stateful() &&
         config.model.dropout.attention == 0 &&
         models::attention_graph_takes(config.model.width / config.model.heads,
                                       models::element_type(config.training.precision.compute));
}

bool is_default_attention(const RunConfig& config) {
  const auto named = config.kernels.find(kAttention);
  return named == config.kernels.end() ||
         (named->second.library.empty() &&
          named->second.name == models::kernel_names(kAttention, kernel_device_of(config)).front());
}

bool uses_cudnn(const RunConfig& config) { return !config.kernels.contains(kAttention) && cudnn_serves(config); }

models::KernelChoices kernels_in_use(const RunConfig& config) {
  models::KernelChoices kernels = config.kernels;
  if (uses_cudnn(config)) kernels[kAttention] = {kCudnn};
  return kernels;
}

std::string recorded_attention(const RunConfig& config) {
  if (!cudnn_serves(config)) return "";
  return kernels_in_use(config).at(kAttention).name;
}

json kernels_json(const json& resolved_spec, const RunConfig& config) {
  json kernels = json::object();
  for (const models::KernelEntry& entry : models::kernel_entries()) {
    const std::string operation(entry.operation);
    if (entry.device == kernel_device_of(config) && !kernels.contains(operation)) kernels[operation] = entry.name;
  }
  for (const auto& [operation, choice] : kernels_in_use(config)) {
    if (choice.library.empty()) {
      kernels[operation] = choice.name;
      continue;
    }
    kernels[operation] = resolved_spec.at("kernels").at(operation);
    kernels[operation]["name"] = choice.name;
  }
  return kernels;
}

}  // namespace droptest::experiments
