// SPDX-License-Identifier: Apache-2.0
#include "models/attention/attention_chunks.h"

#include <algorithm>

#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 32U;

}  // namespace

std::vector<AttentionChunk> chunks_of(std::int64_t length, std::int64_t chunk_tokens) {
  std::vector<AttentionChunk> chunks;
  for (std::int64_t first = 0; first < length; first += chunk_tokens) {
    chunks.push_back({first, std::min(chunk_tokens, length - first)});
  }
  DROPTEST_CHECK(chunks.size() < kMostChunks, "more chunks than keys");
  return chunks;
}

std::vector<ChunkPair> visible_pairs_of(const std::vector<AttentionChunk>& chunks, const AttentionMask& mask,
                                        std::int64_t batch) {
  std::vector<ChunkPair> pairs;
  for (std::size_t k = 0; k < chunks.size(); ++k) {
    for (std::size_t q = k; q < chunks.size(); ++q) {
      bool is_hidden = true;
      for (std::int64_t b = 0; b < batch && is_hidden; ++b) {
        is_hidden = mask.hides(b, chunks[q].positions(), chunks[q].count, chunks[k].positions(), chunks[k].count);
      }
      if (!is_hidden) pairs.push_back({k, q});
    }
  }
  return pairs;
}

std::uint64_t chunk_key(std::uint64_t state, std::size_t chunk, ChunkKind kind) {
  return (state * kMostChunks + chunk) * kChunkKinds.size() + static_cast<std::uint64_t>(kind);
}

}  // namespace droptest::models
