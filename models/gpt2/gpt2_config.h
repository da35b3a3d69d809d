// SPDX-License-Identifier: Apache-2.0
// The shape of a GPT-2 model.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/gpt2/attention_options.h"
#include "models/kernels/dropout.h"

namespace droptest::models {

/// Source: Radford et al. 2019; the released checkpoints' configurations.
struct Gpt2Config {
  int layers = 4;
  int width = 128;
  int heads = 4;
  int context = 128;     ///< longest sequence: rows of the position embedding
  int vocabulary = 256;  ///< true tokens; padding rows are an internal matter of the tensor-parallel model
  AttentionOptions attention{};
  DropoutConfig dropout{};
};

struct Gpt2Preset {
  std::string_view name;
  Gpt2Config config;
  std::string_view summary;
};

/// nano, micro, small (124M), medium, large, xl, in order of size.
const std::vector<Gpt2Preset>& gpt2_presets();
/// Throws: ConfigError that lists the known names.
const Gpt2Preset& gpt2_preset(std::string_view name);

/// Throws: ConfigError for a shape that no model can have, or fewer heads or vocabulary than tensor-parallel ranks.
void validate(const Gpt2Config& config, int tensor_parallel_size);

/// Trainable values of the whole model, without padding: 124,439,808 for small.
std::uint64_t parameter_count(const Gpt2Config& config);

}  // namespace droptest::models
