// SPDX-License-Identifier: Apache-2.0
// The extents of a forward pass, whether a backward pass follows, and whether a batch is one that a model can read.
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/gpt2_config.h"

namespace droptest::models {

/// Whether a forward pass saves activations for a backward pass; one that does not uses the memory of one block for
/// all. kForSplitBackward: the backward pass leaves out the gradients of weights, and saves the inputs of the pass that
/// computes them.
enum class Keep : std::uint8_t { kForBackward, kForSplitBackward, kNothing };

struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t first_position = 0;  ///< of each sequence's first token here: not 0 for a later part of longer sequences
  std::uint64_t step = 0;           ///< of training, for the draws of dropout
  std::int64_t first_sample = 0;    ///< number of the first sequence in the global batch of the step, for them, too

  std::int64_t rows() const { return batch * length; }
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

/// The input of a forward and a backward pass. Shapes: [batch, length], of whole sequences.
struct MicroBatch {
  std::span<const std::int32_t> tokens, targets;
  BatchShape shape;
  /// The document of each token, in ascending order within a sequence; negative: padding. Empty: a sequence is one
  /// document. Read where AttentionOptions::within says so.
  std::span<const std::int32_t> documents{};
};

/// Throws: ConfigError for a shape that the model cannot have, other numbers of tokens or targets than the shape says,
/// documents of another number, a token outside of the vocabulary, or a target that is neither an output of the head
/// nor kIgnoredTarget.
void check_batch(const MicroBatch& batch, const Gpt2Config& config);

/// Targets that are not ignored.
std::int64_t count_targets(std::span<const std::int32_t> targets);
/// The sum of the weights of those targets; without weights their number.
double weigh_targets(std::span<const std::int32_t> targets, std::span<const double> weights);

}  // namespace droptest::models
