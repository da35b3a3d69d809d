// SPDX-License-Identifier: Apache-2.0
// The choice of the StatefulAttention for the options, in the memory of the host or of a device.
#pragma once

#include <cstdint>
#include <memory>

#include "models/attention/block_attention.h"
#include "models/attention/whole_attention.h"

namespace droptest::models {

/// make_stateful_attention() for all options except cached keys and values. Blocks: HostBlocks, DeviceBlocks or
/// PlannedBlocks.
template <class Blocks>
std::unique_ptr<StatefulAttention> stateful_attention_of(const AttentionOptions& options, const SequenceParallel& ranks,
                                                         std::int64_t first_head, std::int64_t heads, Ops& ops) {
  using Memory = typename Blocks::Memory;
  if (options.is_whole()) return std::make_unique<WholeAttention<Blocks>>(options, ops);
  if (options.branches.empty()) {
    return std::make_unique<BlockAttention<Blocks, SequenceAttentionOf<Memory>>>(ranks.group, options.sequence.factors,
                                                                                 heads, options.chunk_tokens, ops);
  }
  return std::make_unique<BlockAttention<Blocks, DilatedAttentionOf<Memory>>>(
      ranks.group, DilatedOptions{options.branches, options.gradient, first_head}, heads, options.chunk_tokens, ops);
}

}  // namespace droptest::models
