// SPDX-License-Identifier: Apache-2.0
// Which part of a GPT-2 a stage is, and how it saves activations.
#pragma once

#include <cstddef>
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

/// Which activations a block saves in its forward pass; its backward pass computes the others again, with the same
/// bits. The values of a sum over ranks are those that were received in the forward pass.
enum class Recompute : std::uint8_t {
  kSaveAll,    ///< all that the backward pass reads; nothing is computed again
  kSelective,  ///< the residual stream before each norm, queries, keys and values, and the projection before GELU:
               ///< norms, attention and GELU are computed again
  kBlock,      ///< the residual stream before each norm alone, which holds the received sums over ranks
};

/// Where a block with Recompute::kBlock saves its residual streams. The input of a stage stays in its slot, because it
/// may be on its way while another pass runs.
struct SavedPlace {
  bool cut = false;        ///< over tensor-parallel ranks, which gather them again: their activations are equal
  bool offloaded = false;  ///< Ops::offload()

  bool leaves_slot() const { return cut || offloaded; }
};

/// Whether blocks with Recompute::kBlock send their sums over ranks again when they are computed again. The values that
/// arrive are not used: packets and time are those of a network without memory, results those of the first time.
enum class RecomputeTraffic : std::uint8_t { kKept, kSent };

struct SlotOptions {
  int slots = 1;                       ///< micro-batches that may be between their two passes
  std::vector<Recompute> recompute{};  ///< of each block of the model; empty: kSaveAll
  SavedPlace place{};
  RecomputeTraffic traffic = RecomputeTraffic::kKept;
  /// Whether tensor-parallel ranks cut the residual stream by tokens (Megatron's sequence parallelism).
  bool tensor_sequence = false;

  Recompute of(int layer) const {
    return recompute.empty() ? Recompute::kSaveAll : recompute[static_cast<std::size_t>(layer)];
  }
  /// Whether a block sends its sums over ranks again.
  bool sends_again(int layer) const { return traffic == RecomputeTraffic::kSent && of(layer) == Recompute::kBlock; }
};

/// Throws: ConfigError for a range without a block of the model, or for slots or policies that cannot be had.
void validate(const StageRange& range, const SlotOptions& options, const Gpt2Config& config);
/// Of a whole model on so many tensor-parallel ranks, and of the model itself. Throws: ConfigError.
void validate(const Gpt2Config& config, const SlotOptions& options, int tensor_ranks);

}  // namespace droptest::models
