// SPDX-License-Identifier: Apache-2.0
// Which part of a GPT-2 a stage is, and how it saves activations.
#pragma once

#include <cstdint>
#include <vector>

#include "models/gpt2/gpt2_config.h"

namespace droptest::models {

/// Blocks first, ..., last - 1 of a model. The stage of block 0 has the embeddings, the stage of the last block has the
/// last norm and the head.
struct StageRange {
  int first = 0;
  int last = 0;
  int layers = 0;  ///< blocks of the whole model

  static StageRange whole(const Gpt2Config& config) { return {0, config.layers, config.layers}; }
  int count() const { return last - first; }
  bool has_embedding() const { return first == 0; }
  bool has_head() const { return last == layers; }
};

/// Which activations a block saves in its forward pass; its backward pass computes the others again.
enum class Recompute : std::uint8_t {
  kSaveAll,    ///< all that the backward pass reads; nothing is computed again
  kAttention,  ///< all but queries, keys, values and attention's output; planned, not built
  kBlock,      ///< the block's input alone; planned, not built
};

struct SlotOptions {
  int slots = 1;                       ///< micro-batches that may be between their two passes
  std::vector<Recompute> recompute{};  ///< of each block of the model; empty: kSaveAll
};

/// Throws: ConfigError for a range without a block of the model, or for slots or policies that cannot be had.
void validate(const StageRange& range, const SlotOptions& options, const Gpt2Config& config);

}  // namespace droptest::models
