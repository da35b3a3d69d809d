// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/device/device_info.h"
#include "comm/json/json_text.h"
#include "experiments/spec/kernels_in_use.h"
#include "experiments/spec/section_members.h"
#include "experiments/spec/section_resolvers.h"
#include "models/gpt2/gpt2_config.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

/// Looked up once, so that a spec resolves to the same run for as long as a program runs.
bool some_device_answers() {
  static const bool answers = comm::survey_devices().absence.empty();
  return answers;
}

/// Dense attention needs no entry.
void resolve_attention(Resolution& resolution, json& model) {
  if (!model.contains("attention")) return;
  const json attention = model["attention"];
  const bool is_dilated = attention.value("kind", "dense") == "dilated";
  for (const char* of_dilated : {"branches", "gradient"}) {
    if (is_dilated || !resolution.given["model"]["attention"].contains(of_dilated)) continue;
    resolution.report(
        std::string("/model/attention/") + of_dilated,
        "got " + quote_json(attention[of_dilated]) + R"(, want it absent, or /model/attention/kind "dilated")");
  }
  if (!is_dilated) {
    model.erase("attention");
    return;
  }
  models::AttentionOptions& options = resolution.config.model.attention;
  read_members(attention, options);
  try {
    models::validate(options.branches);
  } catch (const ConfigError& error) {
    resolution.report("/model/attention/branches", error.what());
    options.branches.clear();
  }
}

constexpr const char* kStateful =
    " with attention over sequence ranks (/parallel/sequence), within documents (/data/documents), dilated "
    "(/model/attention) or in chunks (/memory/attention_chunk), ";

}  // namespace

void resolve_model(Resolution& resolution) {
  json& model = resolution.spec["model"];
  const models::Gpt2Config preset = models::gpt2_preset(model["preset"].get<std::string>()).config;
  model.erase("preset");
  const json extents = members_json(preset);
  model.insert(extents.begin(), extents.end());  // keeps those that the spec has
  read_members(model, resolution.config.model);
  resolve_attention(resolution, model);
  resolution.config.initial_weights = model.value("weights", model.value("pretrained", ""));
  if (!model.contains("pretrained")) resolution.take_hash("/model", "weights");
}

void check_model(Resolution& resolution) {
  const models::Gpt2Config& config = resolution.config.model;
  const std::size_t before = resolution.errors.size();
  if (config.width % config.heads != 0) {
    resolution.report("/model/heads", "got " + std::to_string(config.heads) + ", want a divisor of the width " +
                                          std::to_string(config.width));
  }
  const auto at_most = [&](const char* what, int most) {
    if (resolution.config.parallel.tensor <= most) return;
    resolution.report("/parallel/tensor", "got " + std::to_string(resolution.config.parallel.tensor) +
                                              ", want at most " + std::to_string(most) + ", the model's " + what);
  };
  at_most("heads", config.heads);
  at_most("vocabulary", config.vocabulary);
  if (resolution.errors.size() > before) return;
  try {
    models::validate(config, resolution.config.parallel.tensor);
  } catch (const ConfigError& error) {
    resolution.report("/model", error.what());
  }
}

void resolve_device(Resolution& resolution) {
  const std::string wanted = resolution.spec.value("device", "cpu");
  const std::string backend = resolution.spec["backend"]["name"].get<std::string>();
  // NCCL has no choice, and sockets have none either: they carry host memory.
  const bool only_cuda = backend == "nccl";
  const bool only_cpu = backend == "gloo" || backend == "udp";
  const bool cuda = wanted == "cuda" || (wanted == "auto" && !only_cpu && (only_cuda || some_device_answers()));
  if (only_cuda && !cuda) {
    resolution.report("/device", R"(got "cpu", want "cuda" with backend "nccl", whose ranks are GPUs)");
  }
  if (only_cpu && cuda) {
    resolution.report("/backend/name",
                      "got " + quote_json(resolution.spec["backend"]["name"]) +
                          R"( with device "cuda", but it carries host memory alone; want "local" or "nccl")");
  }
  resolution.spec.erase("device");
  if (cuda) resolution.spec["device"] = "cuda";
  resolution.config.device = cuda ? Device::kCuda : Device::kCpu;
}

void check_attention(Resolution& resolution) {
  models::AttentionOptions& attention = resolution.config.model.attention;
  const json memory = resolution.spec.value("memory", json());
  if (memory.is_object()) attention.chunk_tokens = memory.value("attention_chunk", 0);
  if (attention.is_stateful() && !is_default_attention(resolution.config)) {
    resolution.report("/kernels/attention", "got " + quote_json(resolution.spec["kernels"]["attention"]) + kStateful +
                                                "which has one implementation; want it absent");
  }
}

}  // namespace droptest::experiments
