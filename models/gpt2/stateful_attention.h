// SPDX-License-Identifier: Apache-2.0
// Attention that keeps what its backward pass reads: over sequence-parallel ranks, within documents, or dilated.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/tensor.h"
#include "models/gpt2/attention_options.h"
#include "models/gpt2/sequence_cut.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// A block's pass over a micro-batch.
struct AttentionPlace {
  int layer = 0;
  int slot = 0;
  static constexpr int kEvaluation = -1;  ///< in place of a slot: no backward pass follows
};

/// Causal attention with state of its own for each (block, slot), from a forward pass to its backward pass. A block
/// that is computed again leaves it out: its state has what the rank received. Host alone. Owner: one rank. Ranks: all
/// of the sequence group make the same calls. Classes: sequence_forward, sequence_backward.
class StatefulAttention {
 public:
  virtual ~StatefulAttention() = default;
  /// Shapes: qkv [rows, 3, heads, head width], output [rows, heads, head width], of this rank's tokens.
  virtual void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                       comm::ConstTensor qkv, comm::Tensor output) = 0;
  /// After forward() of that place with the same sequences.
  virtual void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                        comm::ConstTensor grad_output, comm::Tensor grad_qkv) = 0;
  /// Of the state and of working memory, now.
  virtual std::uint64_t bytes() const = 0;
};

/// Null where the options ask for none. `heads`: of this tensor-parallel rank, from number `first_head` on. The
/// operations and the group are borrowed. Ranks: all of the sequence group. Throws: ConfigError for a device.
std::unique_ptr<StatefulAttention> make_stateful_attention(const AttentionOptions& options,
                                                           const SequenceParallel& ranks, std::int64_t first_head,
                                                           std::int64_t heads, Ops& ops);

/// StatefulAttention::bytes() on rank `rank` of a sequence group after passes over `whole` sequences with the heads of
/// a tensor-parallel rank, for so many states: a block and a slot have one. Without flags of absent keys, and values of
/// a fill. 0 where attention has no state.
std::uint64_t stateful_attention_bytes(const AttentionOptions& options, int rank, const AttentionShape& whole,
                                       comm::ElementType type, std::uint64_t states);

}  // namespace droptest::models
