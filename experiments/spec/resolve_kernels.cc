// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_kernels.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/json/nearest_name.h"
#include "models/kernels/attention_graph.h"
#include "models/ops/kernel_registry.h"
#include "models/precision.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using models::KernelDevice;
using nlohmann::json;

constexpr const char* kAttention = "attention";
constexpr const char* kCudnn = "cudnn";

KernelDevice device_of(const RunConfig& config) {
  return config.device == Device::kCuda ? KernelDevice::kCuda : KernelDevice::kHost;
}

std::string device_text(const RunConfig& config) {
  return config.device == Device::kCuda ? R"(/device "cuda")" : R"(/device "cpu")";
}

/// The operation's implementation. Throws: ConfigError about the section's member.
models::KernelChoice choice_of(const std::string& operation, json& member, const std::string& pointer,
                               FileHashes* files, const RunConfig& config) {
  const std::vector<std::string> known = models::kernel_names(operation, device_of(config));
  if (known.empty()) {
    throw ConfigError(pointer + ": got " + quote_json(member) + " with " + device_text(config) +
                      ", where the operation has one implementation, want it absent");
  }
  if (member.is_string()) {
    const std::string name = member.get<std::string>();
    if (std::find(known.begin(), known.end(), name) != known.end()) return {name};
    throw ConfigError(pointer + ": got " + quote_json(member) + " with " + device_text(config) + "; " +
                      comm::known_names_hint(name, known, "kernels"));
  }
  const std::string library = member["library"].get<std::string>();
  if (!models::takes_library(operation, device_of(config))) {
    throw ConfigError(pointer + "/library: got " + quote_json(member["library"]) + " with " + device_text(config) +
                      R"(, want a kernel's name, or /device "cpu" with attention or matmul)");
  }
  if (files != nullptr) {
    std::string hash;
    try {
      hash = files->of(library);
    } catch (const ConfigError& error) {
      throw ConfigError(pointer + "/library: " + error.what() + "; paths are relative to " +
                        std::filesystem::current_path().string());
    }
    if (member.contains("sha256") && member["sha256"] != hash) {
      throw ConfigError(pointer + "/sha256: got " + member["sha256"].dump() + ", but " + library + " has \"" + hash +
                        "\"; want the file that was meant, or no hash");
    }
    member["sha256"] = hash;
  }
  return {models::check_library(operation, library), library};
}

/// Whether cuDNN has the attention of the spec.
bool cudnn_serves(const RunConfig& config) {
  return config.device == Device::kCuda && !config.model.attention.is_stateful() &&
         config.model.dropout.attention == 0 &&
         models::attention_graph_takes(config.model.width / config.model.heads,
                                       models::element_type(config.training.precision.compute));
}

}  // namespace

void resolve_kernels(json& spec, const std::string& where, FileHashes* files, RunConfig& config,
                     std::vector<std::string>& errors) {
  if (!spec.contains("kernels")) return;
  const json given = spec["kernels"];
  for (const auto& [operation, member] : given.items()) {
    json& resolved = spec["kernels"][operation];
    try {
      config.kernels[operation] = choice_of(operation, resolved, "/kernels/" + operation, files, config);
    } catch (const ConfigError& error) {
      errors.push_back(where + ": " + error.what());
      continue;
    }
    const bool spec_decides = operation == kAttention && config.device == Device::kCuda;
    if (spec_decides) continue;
    if (resolved.is_string() && resolved == models::kernel_names(operation, device_of(config)).front()) {
      config.kernels.erase(operation);
      spec["kernels"].erase(operation);
    }
  }
  if (spec["kernels"].empty()) spec.erase("kernels");
}

bool is_default_attention(const RunConfig& config) {
  const auto named = config.kernels.find(kAttention);
  return named == config.kernels.end() ||
         (named->second.library.empty() &&
          named->second.name == models::kernel_names(kAttention, device_of(config)).front());
}

void resolve_default_attention(json& spec, const std::string& where, RunConfig& config,
                               std::vector<std::string>& errors) {
  const auto named = config.kernels.find(kAttention);
  if (named == config.kernels.end() || config.device != Device::kCuda) return;
  const bool serves = cudnn_serves(config);
  if (named->second.name == kCudnn && !serves) {
    errors.push_back(
        where + R"(: /kernels/attention: got "cudnn" with /training/precision )" +
        quote_json(spec["training"].value("precision", json("float32"))) + ", heads of " +
        std::to_string(config.model.width / config.model.heads) + " columns and /training/dropout of " +
        json(config.model.dropout.attention).dump() +
        R"( for attention, want "bfloat16" or "float16", at most 128 columns in a multiple of 8, and 0; )" +
        R"(or "flash" or "plain")");
    return;
  }
  if (serves ? named->second.name != kCudnn : !is_default_attention(config)) return;
  config.kernels.erase(named);
  spec["kernels"].erase(kAttention);
  if (spec["kernels"].empty()) spec.erase("kernels");
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
    if (entry.device == device_of(config) && !kernels.contains(operation)) kernels[operation] = entry.name;
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
