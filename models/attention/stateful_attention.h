// SPDX-License-Identifier: Apache-2.0
// Attention that saves the inputs of its backward pass itself: over sequence-parallel ranks, within documents, dilated,
// or offloaded in chunks.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/tensor.h"
#include "models/attention/attention_options.h"
#include "models/gpt2/sequence_cut.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// A block's pass over a micro-batch.
struct AttentionPlace {
  int layer = 0;
  int slot = 0;
  /// Of the probabilities: numbers in the whole model and batch. The first head is this tensor-parallel rank's, the
  /// first position that of the whole sequences. Both passes have the same.
  DropoutMask dropout{};
  static constexpr int kEvaluation = -1;  ///< in place of a slot: no backward pass follows
};

/// Causal attention with state of its own for each (block, slot), from a forward pass to its backward pass. A block
/// that is computed again leaves it out: its state has what the rank received. Owner: one rank. Ranks: all
/// of the sequence group make the same calls. Classes: sequence_forward, sequence_backward.
class StatefulAttention {
 public:
  virtual ~StatefulAttention() = default;
  /// Shapes: qkv [rows, 3, heads, head width], output [rows, heads, head width], of this rank's tokens.
  virtual void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                       comm::ConstTensor qkv, comm::Tensor output) = 0;
  /// After forward() of that place with the same sequences, which gave this output.
  virtual void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                        comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) = 0;
  /// Of the state and of working memory, now.
  virtual std::uint64_t bytes() const = 0;
};

/// Null where the options ask for none. `heads`: of this tensor-parallel rank, from number `first_head` on. The
/// operations and the group are borrowed. Ranks: all of the sequence group. Throws: ConfigError for options that a
/// device's operations do not take.
std::unique_ptr<StatefulAttention> make_stateful_attention(const AttentionOptions& options,
                                                           const SequenceParallel& ranks, std::int64_t first_head,
                                                           std::int64_t heads, Ops& ops);

/// The memory of an attention with state, in bytes.
struct StatefulAttentionUse {
  std::uint64_t memory = 0;  ///< StatefulAttention::bytes(); of chunks on their way to a device and back, at most
  std::uint64_t stored = 0;  ///< outside of memory
};
/// On rank `rank` of a sequence group after evaluations and passes over `whole` sequences with the heads of a
/// tensor-parallel rank, whose blocks and slots have so many states. Found by a dry run. Without flags of absent keys,
/// and what was lost with the values of a fill. 0 where attention has no state.
StatefulAttentionUse stateful_attention_use(const AttentionOptions& options, int rank, const AttentionShape& whole,
                                            std::uint64_t states, const OpsForm& form);

}  // namespace droptest::models
