// SPDX-License-Identifier: Apache-2.0
// The chunks of attention whose inputs wait outside of memory.
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

/// Tokens of a chunk, and its first one.
struct AttentionChunk {
  std::int64_t first = 0;
  std::int64_t count = 0;

  PositionSteps positions() const { return {first, 1}; }
  /// The tokens in a view of the chunk alone.
  TokenRun alone() const { return {0, count, first}; }
};

/// The last one has the rest. Throws: CheckError for more chunks than chunk_key() tells apart.
std::vector<AttentionChunk> chunks_of(std::int64_t length, std::int64_t chunk_tokens);

/// Numbers of chunks.
struct ChunkPair {
  std::size_t keys = 0;
  std::size_t queries = 0;
};
/// The pairs that the causal mask does not hide in all sequences, by chunks of keys.
std::vector<ChunkPair> visible_pairs_of(const std::vector<AttentionChunk>& chunks, const AttentionMask& mask,
                                        std::int64_t batch);

/// The key under which storage has one tensor of a chunk; it differs for all states, chunks and kinds.
std::uint64_t chunk_key(std::uint64_t state, std::size_t chunk, ChunkKind kind);

}  // namespace droptest::models
