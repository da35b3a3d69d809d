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

/// How the optimizer updates the tensors with a matching name.
struct TensorRule {
  std::string pattern;              ///< Hugging Face's names; a `*` stands for any characters
  double learning_rate_factor = 1;  ///< 0: the tensor is frozen: not updated, not sent, and not in the gradient norm

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("match", pattern);
    visit("learning_rate_factor", learning_rate_factor);
  }
};

/// Low-rank adapters of linear layers (Hu et al. 2022, LoRA). With adapters, all other tensors except a classification
/// head are frozen, whatever a TensorRule says.
struct LoraOptions {
  int rank = 0;                        ///< 0: no adapters
  double alpha = 0;                    ///< the output of an adapter is multiplied by alpha / rank
  std::vector<std::string> targets{};  ///< names from lora_targets()

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("rank", rank);
    visit("alpha", alpha);
    visit("targets", targets);
  }
  bool is_on() const { return rank > 0; }
  double scale() const { return alpha / rank; }
};
/// The linear layers that can have adapters: "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj".
const std::vector<std::string>& lora_targets();

/// Source: Radford et al. 2019; the released checkpoints' configurations.
struct Gpt2Config {
  int layers = 4;
  int width = 128;
  int heads = 4;
  int context = 128;     ///< length of the longest sequence, the number of rows of the position embedding
  int vocabulary = 256;  ///< tokens without the padding that tensor parallelism adds
  AttentionOptions attention{};
  DropoutConfig dropout{};
  /// The number of classes of a classification head, which replaces the LM head; 0: LM head. Targets are then classes,
  /// at the last token of each sequence.
  int classes = 0;
  std::vector<double> class_weights{};     ///< weight of each class in the training loss; empty: all 1
  std::vector<TensorRule> tensor_rules{};  ///< the last matching rule applies; no match: factor 1
  LoraOptions lora{};

  /// The extents by their names in a spec.
  void visit_members(const auto& visit) {
    visit("layers", layers);
    visit("width", width);
    visit("heads", heads);
    visit("context", context);
    visit("vocabulary", vocabulary);
  }
  bool classifies() const { return classes > 0; }
  /// The number of outputs of the head.
  int outputs() const { return classifies() ? classes : vocabulary; }
};

struct Gpt2Preset {
  std::string_view name;
  Gpt2Config config;
  std::string_view summary;
};

/// The presets in order of size: nano, micro, small (124M), medium, large, xl.
const std::vector<Gpt2Preset>& gpt2_presets();
/// The preset of that name. Throws: ConfigError that lists the known names.
const Gpt2Preset& gpt2_preset(std::string_view name);

/// Whether the name matches the pattern, in which a `*` stands for any characters.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// Throws: ConfigError for a shape that no model can have, or for fewer heads or tokens in the vocabulary than
/// tensor-parallel ranks.
void validate(const Gpt2Config& config, int tensor_parallel_size);

/// The number of values of the whole model, frozen ones too, without adapters and padding: 124,439,808 for small.
std::uint64_t parameter_count(const Gpt2Config& config);

}  // namespace droptest::models
