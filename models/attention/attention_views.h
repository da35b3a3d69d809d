// SPDX-License-Identifier: Apache-2.0
// Views of a block's tensors in the form that the algorithms of models/attention/ take.
#pragma once

#include <cstdint>
#include <span>

#include "models/attention/attention_chunks.h"
#include "models/attention/attention_mask.h"
#include "models/attention/head_view.h"
#include "models/attention/host_heads.h"
#include "models/gpt2/sequence_cut.h"
#include "models/kernels/attention.h"
#include "models/ops/ops.h"
#include "models/phase_times.h"

namespace droptest::models {

/// The shape of a whole tensor [rows, heads, head width].
inline HeadShape head_shape(const AttentionShape& s) { return {s.batch, s.length, s.heads, s.head_width}; }

/// A view of the queries (0), keys (1) or values (2) of a tensor [rows, 3, heads, head width]. Its data is null if
/// there are no rows.
template <class T>
HeadView<T> part_of_qkv(std::span<T> elems, std::int64_t part, const AttentionShape& s) {
  const std::int64_t row = s.heads * s.head_width;
  T* const begin = elems.empty() ? nullptr : elems.data() + part * row;
  return {begin, head_shape(s), s.length * 3 * row, 3 * row, s.head_width};
}

/// A view of a tensor [rows, heads, head width].
template <class T>
HeadView<T> tokens_of(std::span<T> elems, const AttentionShape& s) {
  return view_of("attention", elems, head_shape(s), TokenLayout::kBatchFirst);
}

/// A causal mask, within documents if the sequences have any. It borrows the documents.
inline AttentionMask mask_of(const Sequences& sequences, std::int64_t batch) {
  if (sequences.documents.empty()) return AttentionMask(Causality::kCausal);
  const std::int64_t length = sequences.parts->length();
  return {Causality::kCausal, {batch, length, length}, {}, sequences.documents};
}

/// Access to a block's tensors in host memory, and to the threads that compute on them.
template <class T>
class HostBlocks {
 public:
  using Memory = HostHeads<T>;
  explicit HostBlocks(Ops& ops) : team_(*ops.team()), times_(ops.times()) {}

  const Team& processor() const { return team_; }
  PhaseScope timed() const { return {times_, Phase::kAttention}; }
  static std::span<const T> elems(const comm::ConstTensor& tensor) { return tensor.as<T>(); }
  static std::span<T> elems(const comm::Tensor& tensor) { return tensor.as<T>(); }

  /// The documents of the sequences, used in place.
  struct Documents {
    void take(const Sequences& /*sequences*/, const HostBlocks& /*blocks*/) {}
    AttentionMask mask(const Sequences& sequences, std::int64_t batch) const { return mask_of(sequences, batch); }
    std::uint64_t bytes() const { return 0; }
  };

  /// Patterns of a chunk of queries with a chunk of keys. Indices count within each chunk.
  struct ChunkPatterns {
    AttentionPattern of(const AttentionShape& /*shape*/, const AttentionChunk& queries, const AttentionChunk& keys,
                        typename Memory::Inputs& /*inputs*/, const HostBlocks& /*blocks*/) const {
      return pattern_of({queries.alone()}, {keys.alone()});
    }
  };
  /// An upper bound for the bytes of the buffers between memory and a file. `most` is the caller's bound: the number of
  /// its buffers times its largest chunk. The actual number depends on timing.
  static std::uint64_t storage_bytes(const KeyedStorage& /*storage*/, std::uint64_t most) { return most; }

 private:
  Team team_;
  PhaseTimes* times_;
};

}  // namespace droptest::models
