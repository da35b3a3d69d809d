// SPDX-License-Identifier: Apache-2.0
// The list of GPT-2's tensors, and which part of each a tensor-parallel rank has (docs/models.md).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/gpt2/gpt2_config.h"
#include "models/gpt2/stage_range.h"
#include "models/gpt2/tensor_slice.h"
#include "models/parameter.h"

namespace droptest::models {

/// The part of one rank of a tensor-parallel group.
struct Gpt2Part {
  IndexRange heads;       ///< attention heads
  IndexRange hidden;      ///< columns of the MLP's hidden layer
  IndexRange vocabulary;  ///< tokens without padding; may be empty if the padding is large
  std::uint64_t vocabulary_padding = 0;
  IndexRange classes;  ///< classes of the head; may be empty
};

/// The part of rank `rank`. Heads, hidden columns and classes are distributed as evenly as possible; the vocabulary is
/// first padded to a multiple of `ranks`.
Gpt2Part gpt2_part(const Gpt2Config& config, int ranks, int rank);

/// One tensor: its name, its initial values, and this rank's slice.
struct Gpt2Tensor {
  std::string name;
  std::string group;
  TensorSlice slice;
  Placement placement = Placement::kReplicated;
  Decay decay = Decay::kKeeps;
  double learning_rate_factor = 1;  ///< 0: frozen
  double initial_deviation = 0;     ///< standard deviation of the initial normal distribution; 0: constant
  double initial_constant = 0;
  int layer = kOutsideOfBlocks;
  std::uint64_t number = 0;  ///< number in the whole model's list, which selects the random stream
  std::string adapts{};      ///< adapters: name of the weight that they add to
  double adapter_scale = 1;  ///< alpha / rank of an adapter
  bool is_copy = false;      ///< another rank's stage also has it, and updates it

  bool is_frozen() const { return learning_rate_factor == 0; }
  /// Whether this rank updates the tensor.
  bool is_trained() const { return !is_frozen() && !is_copy; }
};

/// The weights of the classification head, [classes, width]: Hugging Face's name in GPT2ForSequenceClassification.
inline constexpr const char* kClassTensor = "score.weight";

/// All tensors in the model's order: wte, wpe, the blocks, ln_f, score of a classification head, and adapters. The
/// names of adapters end in lora_A.weight [rank, inputs] and lora_B.weight [outputs, rank]. Matrices are [inputs,
/// outputs], as in Hugging Face's Conv1D.
std::vector<Gpt2Tensor> gpt2_tensors(const Gpt2Config& config, int ranks, int rank);
/// The token embedding, which is tied to the LM head.
inline constexpr const char* kTiedTensor = "wte.weight";

/// The tensors of a stage, in the order of gpt2_tensors(). If the token embedding and the LM head are in different
/// stages, both have wte, each with the gradient of its own use; the caller adds up the two gradients.
std::vector<Gpt2Tensor> stage_tensors(const Gpt2Config& config, const StageRange& range, int ranks, int rank);
/// The tensors of several stages on one rank, each tensor once. wte is a copy if another rank has the LM head; that
/// rank updates it.
std::vector<Gpt2Tensor> stage_tensors(const Gpt2Config& config, std::span<const StageRange> ranges, int ranks,
                                      int rank);

/// Whether some tensor is frozen.
bool freezes_any(const Gpt2Config& config);

}  // namespace droptest::models
