// SPDX-License-Identifier: Apache-2.0
// Attention that saves its own activations for the backward pass: over sequence-parallel ranks, within documents,
// dilated, or offloaded in chunks.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/tensor.h"
#include "models/attention/attention_options.h"
#include "models/gpt2/sequence_cut.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// The block, the slot of the micro-batch, and the dropout of a call.
struct AttentionPlace {
  int layer = 0;
  int slot = 0;
  /// Dropout of the probabilities. Its samples, heads and positions are numbered over the whole model and batch. The
  /// first head is that of this tensor-parallel rank, the first position that of the whole sequences. Both passes have
  /// the same dropout.
  DropoutMask dropout{};
  static constexpr int kEvaluation = -1;  ///< the slot number of an evaluation: no backward pass follows
};

/// Causal attention that saves activations for each (block, slot) from the forward pass to the backward pass.
/// Recomputation of a block does not call it again, because its state has the values that the rank received. Owner: one
/// rank. Ranks: all of the sequence group make the same calls. Classes: sequence_forward, sequence_backward, and
/// control for flags of lost elements.
class StatefulAttention {
 public:
  virtual ~StatefulAttention() = default;
  /// Computes the output of this rank's tokens. Shapes: qkv [rows, 3, heads, head width], output [rows, heads, head
  /// width].
  virtual void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                       comm::ConstTensor qkv, comm::Tensor output) = 0;
  /// Computes the gradient of qkv. Call it after forward() for the same place and sequences; `output` is the result of
  /// forward().
  virtual void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                        comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) = 0;
  /// The present size of the saved activations and of the working memory.
  virtual std::uint64_t bytes() const = 0;
};

/// Null unless AttentionOptions::is_stateful(). This tensor-parallel rank has `heads` heads; the first has the number
/// `first_head`. The operations and the group are borrowed. Ranks: all of the sequence group. Throws: ConfigError for
/// options that a device does not support.
std::unique_ptr<StatefulAttention> make_stateful_attention(const AttentionOptions& options,
                                                           const SequenceParallel& ranks, std::int64_t first_head,
                                                           std::int64_t heads, Ops& ops);

/// The memory of a StatefulAttention, in bytes.
struct StatefulAttentionUse {
  std::uint64_t memory = 0;  ///< StatefulAttention::bytes(), with an upper bound for the buffers of chunks
  std::uint64_t stored = 0;  ///< bytes that are stored outside of memory
};
/// The memory on rank `rank` of a sequence group after evaluations and training passes, found by a dry run. `whole` is
/// the shape of the whole sequences with the heads of one tensor-parallel rank, and `states` the number of (block,
/// slot) pairs. Flags of absent keys, lists of lost elements and their fills are not counted. All 0 if attention has no
/// state, and with Past::kCached: the cached keys and values grow with the evaluations.
StatefulAttentionUse stateful_attention_use(const AttentionOptions& options, int rank, const AttentionShape& whole,
                                            std::uint64_t states, const OpsForm& form);

}  // namespace droptest::models
