// SPDX-License-Identifier: Apache-2.0
#include "models/attention/offloaded_attention.h"

#include <algorithm>

#include "models/attention/attention_chunks.h"
#include "models/attention/attention_views.h"
#include "models/attention/offloaded_attention_of.h"
#include "models/attention/token_attention.h"

namespace droptest::models {
namespace {

/// Chunks of one kind in memory at once, at most: queries, keys and values that are met, and as many in buffers of the
/// file, on their way.
constexpr std::uint64_t kResidentChunks = 2 * kChunkKinds.size();

}  // namespace

std::unique_ptr<StatefulAttention> make_offloaded_attention(const AttentionOptions& options, Ops& ops) {
  if (ops.form().types().activations == comm::ElementType::kFloat64) {
    return std::make_unique<OffloadedAttention<HostBlocks<double>>>(options, ops);
  }
  return std::make_unique<OffloadedAttention<HostBlocks<float>>>(options, ops);
}

OffloadedAttentionSize offloaded_attention_size(std::int64_t chunk_tokens, const AttentionShape& shape, int threads) {
  HeadShape chunk = head_shape(shape);
  chunk.tokens = std::min(chunk_tokens, shape.length);
  return {static_cast<std::uint64_t>(shape.batch * shape.heads * shape.length),
          kResidentChunks * chunk.elems() + token_attention_scratch_elems(shape.head_width, threads),
          kChunkKinds.size() * head_shape(shape).elems()};
}

}  // namespace droptest::models
