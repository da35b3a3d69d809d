// SPDX-License-Identifier: Apache-2.0
// Micro-batches: their extents, the activations that a forward pass saves, and checks against a model.
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/gpt2_config.h"

namespace droptest::models {

/// The activations that a forward pass saves. kNothing: no backward pass follows, and all blocks share the memory of
/// one block. kForSplitBackward: the backward pass is split; its first part leaves out the gradients of weights and
/// saves the inputs of the second part.
enum class Keep : std::uint8_t { kForBackward, kForSplitBackward, kNothing };

struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t first_position = 0;  ///< position of each sequence's first token; 0 unless the sequence continues
  std::uint64_t step = 0;           ///< training step, for the draws of dropout
  std::int64_t first_sample = 0;  ///< number of the first sequence in the step's global batch, for the draws of dropout

  std::int64_t rows() const { return batch * length; }
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

/// The input of a forward and a backward pass: whole sequences. Shapes: [batch, length].
struct MicroBatch {
  std::span<const std::int32_t> tokens, targets;
  BatchShape shape;
  /// The document of each token, in ascending order within a sequence; negative: padding. Empty: each sequence is one
  /// document. Only read with AttentionOptions::Within::kDocument.
  std::span<const std::int32_t> documents{};
};

/// Throws: ConfigError for a shape that the model does not support; for numbers of tokens, targets or documents that do
/// not match the shape; for a token outside of the vocabulary; and for a target that is neither an output of the head
/// nor kIgnoredTarget.
void check_batch(const MicroBatch& batch, const Gpt2Config& config);

/// The number of targets that are not ignored.
std::int64_t count_targets(std::span<const std::int32_t> targets);
/// The sum of the weights of the targets that are not ignored; without weights, their number.
double weigh_targets(std::span<const std::int32_t> targets, std::span<const double> weights);

}  // namespace droptest::models
