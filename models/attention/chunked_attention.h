// SPDX-License-Identifier: Apache-2.0
// Attention of a sequence in chunks; the keys and values of the chunks that are not in use are in a file.
#pragma once

#include <cstdint>
#include <vector>

#include "models/attention/token_attention.h"
#include "models/ops/offload_file.h"

namespace droptest::models {

/// The tokens first, ..., first + count - 1 of those in `runs`. Indices in the result count from 0.
std::vector<TokenRun> cut_runs(const std::vector<TokenRun>& runs, std::int64_t first, std::int64_t count);

/// A rank's sequence as chunks of equally many tokens, the last one perhaps shorter. The keys and values of the chunks,
/// and in the backward pass their gradients, are in the file. Only the chunk that the queries attend to and the next
/// one, which is read meanwhile, are in memory. The result equals one attention over all chunks, because attend()
/// continues the output and the log-sum-exp from chunk to chunk. Source: Yao et al. 2024 (Fully Pipelined Distributed
/// Transformer).
///
/// Forward pass: put() each chunk, then call forward() for its queries once all chunks that they see have been put;
/// with a causal mask, both calls can be made chunk by chunk. Backward pass: call backward() for the queries of each
/// chunk, then take_gradients(). With a causal mask and increasing positions, call backward() from the last chunk to
/// the first: a chunk's gradients are then complete after its own backward(). Owner: one rank, from one thread. Errors:
/// ConfigError from the file.
template <class T>
class ChunkedAttention {
 public:
  /// `shape` is that of all tokens, and `tokens` has their positions. The file is borrowed; this object uses its keys
  /// first_key, ..., first_key + 4 chunks() - 1. Throws: ConfigError for a chunk of less than one token.
  ChunkedAttention(const HeadShape& shape, std::vector<TokenRun> tokens, std::int64_t chunk_tokens, OffloadFile& file,
                   std::uint64_t first_key = 0);

  int chunks() const { return static_cast<int>(runs_.size()); }
  /// The shape of the keys, values, queries and outputs of a chunk.
  HeadShape chunk_shape(int chunk) const;

  /// Stores the keys and values of a chunk. Throws: ConfigError that names the tensor and the axis for a wrong shape,
  /// as the calls below do.
  void put(int chunk, const HeadView<const T>& keys, const HeadView<const T>& values);
  /// Sets output and log_sum_exp [batch, heads, tokens of the chunk]. `dropout` as in AttentionInputs. Throws:
  /// CheckError if the queries see a chunk that was not put.
  void forward(int chunk, const HeadView<const T>& queries, const AttentionMask& mask, const HeadView<T>& output,
               std::span<T> log_sum_exp, const Team& team, const DropoutMask& dropout = {});
  /// Sets grad_queries, and adds to the gradients in the file. The dropout is that of forward().
  void backward(int chunk, const HeadView<const T>& queries, const AttentionMask& mask,
                const AttentionResults<T>& results, const HeadView<T>& grad_queries, const Team& team,
                const DropoutMask& dropout = {});
  /// Gives the gradients of a chunk's keys and values, and resets them to zero for the next backward pass.
  void take_gradients(int chunk, const HeadView<T>& grad_keys, const HeadView<T>& grad_values);

  /// An upper bound for the memory of this object and its file in a pass, without the caller's chunks. Forward: the
  /// keys and values of the current chunk and of the next one, two tensors that are being written to the file, and the
  /// scratch. Backward: in addition, the gradients of the keys and values of both chunks.
  std::uint64_t forward_bytes(int threads) const { return resident_bytes(6, threads); }
  std::uint64_t backward_bytes(int threads) const { return resident_bytes(10, threads); }

 private:
  enum class Kind : std::uint8_t { kKeys, kValues, kKeyGradients, kValueGradients };
  std::uint64_t resident_bytes(std::int64_t tensors, int threads) const;
  std::uint64_t key(int chunk, Kind kind) const {
    return first_key_ + 4 * static_cast<std::uint64_t>(chunk) + static_cast<std::uint64_t>(kind);
  }
  std::vector<int> seen_chunks(int chunk, const AttentionMask& mask) const;
  void expect(int chunk, bool with_gradients);
  HeadView<T> take(int chunk, Kind kind, std::vector<T>& to);
  void put(int chunk, Kind kind, const std::vector<T>& elems);
  std::span<T> scratch(const Team& team);

  HeadShape shape_;
  std::int64_t chunk_tokens_;
  std::vector<std::vector<TokenRun>> runs_;  ///< the tokens of each chunk
  OffloadFile& file_;
  std::uint64_t first_key_;
  std::vector<bool> is_put_;         ///< whether put() has had the chunk
  std::vector<bool> has_gradients_;  ///< whether the file has gradients of the chunk
  std::vector<T> keys_;
  std::vector<T> values_;
  std::vector<T> grad_keys_;
  std::vector<T> grad_values_;
  std::vector<T> scratch_;
};

}  // namespace droptest::models
