// SPDX-License-Identifier: Apache-2.0
// Attention whose queries, keys and values wait outside of memory for the backward pass, which works through them in
// chunks.
#pragma once

#include <cstdint>
#include <memory>

#include "models/attention/stateful_attention.h"

namespace droptest::models {

/// Whether the options ask for dense attention of one rank in chunks, which is this one.
inline bool is_dense_in_chunks(const AttentionOptions& options) {
  return options.chunk_tokens > 0 && options.sequence.ranks() == 1 && options.branches.empty();
}

/// Dense attention of a rank that has all tokens. A forward pass stores queries, keys and values by chunks of
/// options.chunk_tokens tokens, the last one perhaps shorter. The backward pass takes the chunks of keys and values one
/// after the other, and for each the chunks of queries that see it; the next chunk is read meanwhile. Pairs of chunks
/// that the mask hides are left out. Source: Yao et al. 2024 (Fully Pipelined Distributed Transformer), section 4;
/// projections are those of whole sequences here. The operations are the host's, and are borrowed.
std::unique_ptr<StatefulAttention> make_offloaded_attention(const AttentionOptions& options, Ops& ops);

/// Elements of such an attention: `state` for each block and slot, `working` once. In the file are `stored` for each
/// block and slot that a backward pass follows.
struct OffloadedAttentionSize {
  std::uint64_t state = 0;
  std::uint64_t working = 0;
  std::uint64_t stored = 0;
};
OffloadedAttentionSize offloaded_attention_size(std::int64_t chunk_tokens, const AttentionShape& shape, int threads);

}  // namespace droptest::models
