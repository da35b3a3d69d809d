// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2_config.h"

#include <cmath>
#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
namespace {

// Larger values are typing errors. Within these limits, products of dimensions stay far below 2^63.
constexpr int kMaxLayers = 10000;
constexpr int kMaxDimension = 1 << 24;

void require(bool holds, const char* name, int got, const std::string& want) {
  if (!holds) {
    throw ConfigError(std::string("GPT-2 configuration: ") + name + ": got " + std::to_string(got) + ", want " + want);
  }
}

}  // namespace

const std::vector<Gpt2Preset>& gpt2_presets() {
  static const std::vector<Gpt2Preset> presets = {
      {"nano", {4, 128, 4, 128, 256}, "0.8M parameters over bytes: trains in minutes on a laptop"},
      {"micro", {6, 384, 6, 128, 256}, "11M parameters over bytes"},
      {"small", {12, 768, 12, 1024, 50257}, "GPT-2 124M"},
      {"medium", {24, 1024, 16, 1024, 50257}, "GPT-2 355M"},
      {"large", {36, 1280, 20, 1024, 50257}, "GPT-2 774M"},
      {"xl", {48, 1600, 25, 1024, 50257}, "GPT-2 1558M"},
  };
  return presets;
}

const Gpt2Preset& gpt2_preset(std::string_view name) {
  std::string known;
  for (const Gpt2Preset& preset : gpt2_presets()) {
    if (preset.name == name) return preset;
    known += (known.empty() ? "" : ", ") + std::string(preset.name);
  }
  throw ConfigError("model: got \"" + std::string(name) + "\", want one of " + known);
}

void validate(const Gpt2Config& config, int tensor_parallel_size) {
  const std::string dimension = "an integer in [1, " + std::to_string(kMaxDimension) + "]";
  require(config.layers >= 1 && config.layers <= kMaxLayers, "layers", config.layers,
          "an integer in [1, " + std::to_string(kMaxLayers) + "]");
  require(config.width >= 1 && config.width <= kMaxDimension, "width", config.width, dimension);
  require(config.heads >= 1 && config.heads <= config.width, "heads", config.heads,
          "an integer in [1, width = " + std::to_string(config.width) + "]");
  require(config.width % config.heads == 0, "heads", config.heads,
          "a divisor of width = " + std::to_string(config.width));
  require(config.context >= 1 && config.context <= kMaxDimension, "context", config.context, dimension);
  require(config.vocabulary >= 1 && config.vocabulary <= kMaxDimension, "vocabulary", config.vocabulary, dimension);
  for (const auto& [name, probability] :
       {std::pair("attention", config.dropout.attention), std::pair("residual", config.dropout.residual),
        std::pair("embedding", config.dropout.embedding)}) {
    if (probability >= 0 && probability < 1) continue;
    throw ConfigError(std::string("GPT-2 configuration: dropout of ") + name + ": got " + std::to_string(probability) +
                      ", want a probability from 0 to below 1");
  }
  require(tensor_parallel_size >= 1, "tensor-parallel size", tensor_parallel_size, "at least 1");
  require(tensor_parallel_size <= config.heads, "tensor-parallel size", tensor_parallel_size,
          "at most one rank per head: heads = " + std::to_string(config.heads));
  require(tensor_parallel_size <= config.vocabulary, "tensor-parallel size", tensor_parallel_size,
          "at most one rank per token: vocabulary = " + std::to_string(config.vocabulary));
  validate(config.attention, config.heads / tensor_parallel_size);
  require(config.classes == 0 || (config.classes >= 2 && config.classes <= kMaxDimension), "classes", config.classes,
          "0, or an integer in [2, " + std::to_string(kMaxDimension) + "]");
  if (config.class_weights.empty()) return;
  require(static_cast<int>(config.class_weights.size()) == config.classes, "weights of classes",
          static_cast<int>(config.class_weights.size()), "none, or one for each of " + std::to_string(config.classes));
  for (const double weight : config.class_weights) {
    if (std::isfinite(weight) && weight > 0) continue;
    throw ConfigError("GPT-2 configuration: weights of classes: got " + std::to_string(weight) +
                      ", want numbers above 0");
  }
}

const std::vector<std::string>& lora_targets() {
  static const std::vector<std::string> targets = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
  return targets;
}

bool matches_pattern(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (std::size_t begin = star; begin <= name.size(); ++begin) {
    if (matches_pattern(rest, name.substr(begin))) return true;
  }
  return false;
}

std::uint64_t parameter_count(const Gpt2Config& config) {
  const auto width = static_cast<std::uint64_t>(config.width);
  const std::uint64_t attention = width * 3 * width + 3 * width + width * width + width;
  const std::uint64_t mlp = width * 4 * width + 4 * width + 4 * width * width + width;
  const std::uint64_t norms = 4 * width;
  return (static_cast<std::uint64_t>(config.vocabulary) + static_cast<std::uint64_t>(config.context)) * width +
         static_cast<std::uint64_t>(config.layers) * (attention + mlp + norms) + 2 * width +
         static_cast<std::uint64_t>(config.classes) * width;
}

}  // namespace droptest::models
