// SPDX-License-Identifier: Apache-2.0
// Chunks of a sequence, for attention that stores its inputs outside of memory between the passes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/attention/attention_mask.h"
#include "models/attention/token_attention.h"

namespace droptest::models {

enum class ChunkKind : std::uint8_t { kQueries, kKeys, kValues };
inline constexpr std::array kChunkKinds = {ChunkKind::kQueries, ChunkKind::kKeys, ChunkKind::kValues};

/// A chunk of consecutive tokens: its first token and their number.
struct AttentionChunk {
  std::int64_t first = 0;
  std::int64_t count = 0;

  PositionSteps positions() const { return {first, 1}; }
  /// The tokens in a view that has only this chunk.
  TokenRun alone() const { return {0, count, first}; }
};

/// Chunks of `chunk_tokens` tokens; the last one may be shorter. Throws: CheckError for more chunks than chunk_key()
/// can distinguish.
std::vector<AttentionChunk> chunks_of(std::int64_t length, std::int64_t chunk_tokens);

/// The index of a chunk of keys and that of a chunk of queries.
struct ChunkPair {
  std::size_t keys = 0;
  std::size_t queries = 0;
};
/// The pairs in which some query may see some key, in the order of the chunks of keys. Only the documents of the mask
/// count; attention is taken as causal, whatever mask.causality() is.
std::vector<ChunkPair> visible_pairs_of(const std::vector<AttentionChunk>& chunks, const AttentionMask& mask,
                                        std::int64_t batch);

/// The storage key of one tensor of a chunk. Different states, chunks and kinds have different keys.
std::uint64_t chunk_key(std::uint64_t state, std::size_t chunk, ChunkKind kind);

}  // namespace droptest::models
