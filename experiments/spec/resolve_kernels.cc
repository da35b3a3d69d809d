// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/json/nearest_name.h"
#include "experiments/spec/kernels_in_use.h"
#include "experiments/spec/section_resolvers.h"
#include "models/kernels/attention_graph.h"
#include "models/ops/kernel_registry.h"
#include "models/precision.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

std::string device_text(const RunConfig& config) {
  return config.device == Device::kCuda ? R"(/device "cuda")" : R"(/device "cpu")";
}

/// The implementation that the member of an operation names; absent: the member is wrong, which was reported.
std::optional<models::KernelChoice> choice_of(Resolution& resolution, const std::string& operation) {
  const RunConfig& config = resolution.config;
  const json& member = resolution.spec["kernels"][operation];
  const std::string pointer = "/kernels/" + operation;
  const std::vector<std::string> known = models::kernel_names(operation, kernel_device_of(config));
  if (known.empty()) {
    resolution.report(pointer, "got " + quote_json(member) + " with " + device_text(config) +
                                   ", where the operation has one implementation, want it absent");
    return std::nullopt;
  }
  if (member.is_string()) {
    const std::string name = member.get<std::string>();
    if (std::find(known.begin(), known.end(), name) != known.end()) return models::KernelChoice{name};
    resolution.report(pointer, "got " + quote_json(member) + " with " + device_text(config) + "; " +
                                   comm::known_names_hint(name, known, "kernels"));
    return std::nullopt;
  }
  const std::string library = member["library"].get<std::string>();
  if (!models::takes_library(operation, kernel_device_of(config))) {
    resolution.report(pointer + "/library", "got " + quote_json(member["library"]) + " with " + device_text(config) +
                                                R"(, want a kernel's name, or /device "cpu" with attention or matmul)");
    return std::nullopt;
  }
  const std::size_t before = resolution.errors.size();
  resolution.take_hash(pointer, "library");
  if (resolution.errors.size() > before) return std::nullopt;
  try {
    return models::KernelChoice{models::check_library(operation, library), library};
  } catch (const ConfigError& error) {
    resolution.errors.push_back(resolution.where + ": " + error.what());
    return std::nullopt;
  }
}

}  // namespace

void resolve_kernels(Resolution& resolution) {
  json& spec = resolution.spec;
  RunConfig& config = resolution.config;
  if (!spec.contains("kernels")) return;
  const json given = spec["kernels"];
  for (const auto& [operation, member] : given.items()) {
    const std::optional<models::KernelChoice> choice = choice_of(resolution, operation);
    if (!choice) continue;
    config.kernels[operation] = *choice;
    const bool spec_decides = operation == kAttention && config.device == Device::kCuda;
    if (spec_decides) continue;
    if (member.is_string() && member == models::kernel_names(operation, kernel_device_of(config)).front()) {
      config.kernels.erase(operation);
      spec["kernels"].erase(operation);
    }
  }
  if (spec["kernels"].empty()) spec.erase("kernels");
}

void resolve_default_attention(Resolution& resolution) {
  json& spec = resolution.spec;
  RunConfig& config = resolution.config;
  const auto named = config.kernels.find(kAttention);
  if (named == config.kernels.end() || config.device != Device::kCuda) return;
  const bool serves = cudnn_serves(config);
  if (named->second.name == kCudnn && !serves) {
    resolution.report(
        "/kernels/attention",
        R"(got "cudnn" with /training/precision )" + quote_json(spec["training"].value("precision", json("float32"))) +
            ", heads of " + std::to_string(config.model.width / config.model.heads) +
            " columns and /training/dropout of " + json(config.model.dropout.attention).dump() +
            R"( for attention, want "bfloat16" or "float16", at most 128 columns in a multiple of 8, and 0; )" +
            R"(or "flash" or "plain")");
    return;
  }
  if (serves ? named->second.name != kCudnn : !is_default_attention(config)) return;
  config.kernels.erase(named);
  spec["kernels"].erase(kAttention);
  if (spec["kernels"].empty()) spec.erase("kernels");
}

}  // namespace droptest::experiments
