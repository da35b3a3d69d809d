// SPDX-License-Identifier: Apache-2.0
// The blocks of a stage, and the options for its saved activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/gpt2/gpt2_config.h"

namespace droptest::models {

/// The blocks first, ..., end - 1 of a model. The stage with block 0 has the embeddings; the stage with the last block
/// has the last norm and the head.
struct StageRange {
  int first = 0;
  int end = 0;
  int layers = 0;  ///< number of blocks of the whole model

  static StageRange whole(const Gpt2Config& config) { return {0, config.layers, config.layers}; }
  int count() const { return end - first; }
  bool has_embedding() const { return first == 0; }
  bool has_head() const { return end == layers; }
};

/// The activations that a block saves in its forward pass. Its backward pass recomputes the others with the same bits;
/// with kSelective these are norms, attention and GELU, and unless OpsForm::gelu_from_projection() also the projection
/// before GELU. Sums over ranks have the values that were received in the forward pass.
enum class Recompute : std::uint8_t {
  kSaveAll,    ///< all that the backward pass reads; nothing is recomputed
  kSelective,  ///< residual streams before norms, queries, keys, values; if GELU reads it, the projection before GELU
  kBlock,      ///< only the residual stream before each norm, which has the received sums over ranks
};

/// How a block with Recompute::kBlock saves its residual streams. The input of a stage stays in its slot, because it
/// may still be sent while another pass runs.
struct SavedPlace {
  bool cut = false;        ///< tensor-parallel ranks save a part each, and gather the parts again
  bool offloaded = false;  ///< stored by Ops::offload()

  bool leaves_slot() const { return cut || offloaded; }
};

/// Whether recomputed blocks (Recompute::kBlock) send their sums over ranks again. kSent: they are sent, which costs
/// packets and time, but the received values are not used; results are those of kKept.
enum class RecomputeTraffic : std::uint8_t { kKept, kSent };

struct SlotOptions {
  /// Number of micro-batches that may be between their two passes; a pipeline has PipelineProgram::slots instead.
  int slots = 1;
  std::vector<Recompute> recompute{};  ///< policy of each block of the model; empty: kSaveAll
  SavedPlace place{};
  RecomputeTraffic traffic = RecomputeTraffic::kKept;
  /// Whether tensor-parallel ranks cut the residual stream by tokens (Megatron's sequence parallelism).
  bool tensor_sequence = false;

  Recompute of(int layer) const {
    return recompute.empty() ? Recompute::kSaveAll : recompute[static_cast<std::size_t>(layer)];
  }
  /// Whether a recomputed block sends its sums over ranks again.
  bool sends_again(int layer) const { return traffic == RecomputeTraffic::kSent && of(layer) == Recompute::kBlock; }
};

/// Throws: ConfigError for a range without a block of the model, or for unsupported slots or policies.
void validate(const StageRange& range, const SlotOptions& options, const Gpt2Config& config);
/// Checks a whole model and its slots on `tensor_ranks` tensor-parallel ranks. Throws: ConfigError.
void validate(const Gpt2Config& config, const SlotOptions& options, int tensor_ranks);

}  // namespace droptest::models
