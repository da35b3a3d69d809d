// SPDX-License-Identifier: Apache-2.0
// Views of a block's tensors and of its documents on a device, in the form that StatefulAttention takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "comm/device/device_buffer.h"
#include "comm/device/stream_timer.h"
#include "models/attention/attention_chunks.h"
#include "models/attention/device_head_memory.h"
#include "models/attention/device_token_attention.h"
#include "models/gpt2/sequence_cut.h"
#include "models/kernels/attention.h"
#include "models/ops/device_spans.h"
#include "models/ops/ops.h"
#include "models/phase_times.h"

namespace droptest::models {

/// A view of the queries (0), keys (1) or values (2) of a tensor [rows, 3, heads, head width].
template <class E>
DeviceHeadView<E> part_of_qkv(comm::DeviceSpan<E> elems, std::int64_t part, const AttentionShape& s) {
  const std::int64_t row = s.heads * s.head_width;
  const std::size_t skipped = std::min(elems.size(), static_cast<std::size_t>(part * row));
  return {elems.subspan(skipped, elems.size() - skipped),
          {s.batch, s.length, s.heads, s.head_width},
          s.length * 3 * row,
          3 * row,
          s.head_width};
}
/// A view of a tensor [rows, heads, head width].
template <class E>
DeviceHeadView<E> tokens_of(comm::DeviceSpan<E> elems, const AttentionShape& s) {
  const std::int64_t row = s.heads * s.head_width;
  return {elems, {s.batch, s.length, s.heads, s.head_width}, s.length * row, row, s.head_width};
}

/// Whether attention of both shapes uses the same patterns.
inline bool have_equal_patterns(const AttentionShape& a, const AttentionShape& b) {
  return a.batch == b.batch && a.length == b.length && a.heads == b.heads && a.head_width == b.head_width;
}

/// Access to a block's tensors on a device, and to the stream that computes on them.
template <class E>
class DeviceBlocks {
 public:
  using Memory = DeviceHeads<E>;
  /// The operations are borrowed.
  explicit DeviceBlocks(Ops& ops) : ops_(ops) {}

  comm::Stream& processor() const { return *ops_.stream(); }
  comm::StreamTimer::Scope timed() const {
    return {ops_.timer(), static_cast<std::size_t>(Phase::kAttention), ops_.stream()};
  }
  static comm::DeviceSpan<const E> elems(const comm::ConstTensor& tensor) { return span_of<E>(tensor); }
  static comm::DeviceSpan<E> elems(const comm::Tensor& tensor) { return span_of<E>(tensor); }

  /// The device's copy of the document numbers of whole sequences. Each micro-batch between its passes has one.
  class Documents {
   public:
    void take(const Sequences& sequences, const DeviceBlocks& blocks) {
      count_ = sequences.documents.size();
      if (count_ == 0) return;
      room_in(buffer_, count_, "numbers of documents", blocks.processor());
      blocks.ops_.take_tokens(sequences.documents, {buffer_.elems().data(), count_});
    }
    /// A causal mask, within documents if the sequences have any.
    DeviceAttentionMask mask(const Sequences& sequences, std::int64_t /*batch*/) const {
      return {Causality::kCausal, sequences.parts->length(), elems()};
    }
    comm::DeviceSpan<const std::int32_t> elems() const { return buffer_.elems().first(count_); }
    std::uint64_t bytes() const { return buffer_.bytes(); }

   private:
    comm::DeviceBuffer<std::int32_t> buffer_;
    std::size_t count_ = 0;
  };

  /// Patterns of a chunk of queries with a chunk of keys. Positions count from the first token of each chunk, so that
  /// chunks of equal lengths share a pattern; of() writes the first positions into `inputs`.
  class ChunkPatterns {
   public:
    const DeviceAttentionPattern& of(const AttentionShape& shape, const AttentionChunk& queries,
                                     const AttentionChunk& keys, typename Memory::Inputs& inputs,
                                     const DeviceBlocks& blocks) {
      inputs.first_query = queries.first;
      inputs.first_key = keys.first;
      if (!have_equal_patterns(shape_, shape)) {
        if (!patterns_.empty()) blocks.processor().synchronize();  // earlier work may use them
        patterns_.clear();
        shape_ = shape;
      }
      const auto found = patterns_.find({queries.count, keys.count});
      if (found != patterns_.end()) return found->second;
      return patterns_
          .try_emplace({queries.count, keys.count}, pattern_of({{0, queries.count, 0}}, {{0, keys.count, 0}}),
                       shape.heads, shape.head_width, blocks.processor())
          .first->second;
    }

   private:
    AttentionShape shape_;
    std::map<std::pair<std::int64_t, std::int64_t>, DeviceAttentionPattern> patterns_;
  };
  static std::uint64_t storage_bytes(const KeyedStorage& storage, std::uint64_t /*most*/) {
    return storage.buffer_bytes();
  }

 private:
  Ops& ops_;
};

}  // namespace droptest::models
