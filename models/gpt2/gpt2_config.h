// SPDX-License-Identifier: Apache-2.0
// The shape of a GPT-2 model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/attention/attention_options.h"
#include "models/kernels/dropout.h"

namespace droptest::models {

/// How the optimizer updates the tensors whose names match.
struct TensorRule {
  std::string pattern;              ///< Hugging Face's names; a `*` stands for any characters
  double learning_rate_factor = 1;  ///< 0: frozen: neither updated nor sent nor part of the gradient norm
};

/// Low-rank additions to the weights of linear layers (Hu et al. 2022, LoRA). Where there are some, all other tensors
/// but a classification head are frozen, whatever a TensorRule says.
struct LoraOptions {
  int rank = 0;                        ///< 0: none
  double alpha = 0;                    ///< the additions are multiplied by alpha / rank
  std::vector<std::string> targets{};  ///< of lora_targets()

  bool is_on() const { return rank > 0; }
  double scale() const { return alpha / rank; }
};
/// "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj".
const std::vector<std::string>& lora_targets();

/// Source: Radford et al. 2019; the released checkpoints' configurations.
struct Gpt2Config {
  int layers = 4;
  int width = 128;
  int heads = 4;
  int context = 128;     ///< longest sequence: rows of the position embedding
  int vocabulary = 256;  ///< true tokens; padding rows are an internal matter of the tensor-parallel model
  AttentionOptions attention{};
  DropoutConfig dropout{};
  /// Of a head that classifies sequences, in place of the LM head; 0: none. Targets are classes then, at the last token
  /// of each sequence.
  int classes = 0;
  std::vector<double> class_weights{};     ///< of each class in the training loss; empty: 1
  std::vector<TensorRule> tensor_rules{};  ///< the last one that matches holds; none: 1
  LoraOptions lora{};

  bool classifies() const { return classes > 0; }
  /// Outputs of the head: different targets.
  int outputs() const { return classifies() ? classes : vocabulary; }
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

/// Whether the name matches the pattern, in which a `*` stands for any characters.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// Throws: ConfigError for a shape that no model can have, or fewer heads or vocabulary than tensor-parallel ranks.
void validate(const Gpt2Config& config, int tensor_parallel_size);

/// Trainable values of the whole model, without padding: 124,439,808 for small.
std::uint64_t parameter_count(const Gpt2Config& config);

}  // namespace droptest::models
