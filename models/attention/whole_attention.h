// SPDX-License-Identifier: Apache-2.0
// Dense attention of a rank that has all tokens: within documents, or in chunks. For host and device memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "models/attention/attention_chunks.h"
#include "models/attention/attention_views.h"
#include "models/attention/stateful_attention.h"
#include "sim/error.h"

namespace droptest::models {

/// Blocks: HostBlocks, DeviceBlocks or PlannedBlocks. Without chunks, a state has the queries, keys and values in
/// memory. With chunks, the forward pass stores them outside of memory, in chunks of options.chunk_tokens tokens; the
/// last chunk may be shorter. The backward pass brings the chunks of keys and values back one after the other, and for
/// each the chunks of queries that see it. The next chunk is read meanwhile. Pairs of chunks that the mask hides are
/// skipped. Source: Yao et al. 2024 (Fully Pipelined Distributed Transformer), section 4; unlike there, the projections
/// are computed for whole sequences. The operations are borrowed.
template <class Blocks>
class WholeAttention final : public StatefulAttention {
  using Memory = typename Blocks::Memory;
  using E = typename Memory::Element;
  template <class U>
  using Span = typename Memory::template Span<U>;
  template <class U>
  using View = typename Memory::template View<U>;

 public:
  WholeAttention(const AttentionOptions& options, Ops& ops)
      : chunk_tokens_(options.chunk_tokens),
        blocks_(ops),
        storage_(options.chunk_tokens > 0 ? ops.make_keyed_storage() : nullptr) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const auto timed = blocks_.timed();
    const bool is_evaluation = at.slot == AttentionPlace::kEvaluation;
    const auto place = is_evaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot);
    State& state = states_.try_emplace(place, State{.number = states_.size()}).first->second;
    take_shape(shape, state);
    state.documents.take(sequences, blocks_);
    const auto mask = state.documents.mask(sequences, shape.batch);
    const Span<const E> elems = Blocks::elems(qkv);
    const View<E> out = tokens_of(Blocks::elems(output), shape);
    const auto part = [&](ChunkKind kind) { return part_of_qkv(elems, static_cast<std::int64_t>(kind), shape); };
    const std::vector<AttentionChunk> chunks = chunks_of(shape.length, most_tokens(shape));
    if (!storage_ && !is_evaluation) Memory::copy(elems, saved_in(state, shape), blocks_.processor());
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const AttentionChunk& chunk = chunks[c];
      const View<E> of_chunk = out.tokens(chunk.first, chunk.count);
      const auto log_sum_exp = statistics_of(state, shape, chunk);
      Memory::begin(of_chunk, log_sum_exp, blocks_.processor());
      typename Memory::Inputs inputs{part(ChunkKind::kQueries).tokens(chunk.first, chunk.count),
                                     part(ChunkKind::kKeys),
                                     part(ChunkKind::kValues),
                                     mask,
                                     {},
                                     at.dropout};
      const auto& pattern = patterns_.of(shape, chunk, {0, shape.length}, inputs, blocks_);
      Memory::attend(inputs, {}, pattern, of_chunk, log_sum_exp, scratch_, blocks_.processor());
      if (is_evaluation || !storage_) continue;
      for (const ChunkKind kind : kChunkKinds) {
        const View<E> room = room_of(kind, shape, chunk);
        Memory::copy(part(kind).tokens(chunk.first, chunk.count), room, blocks_.processor());
        storage_->put(chunk_key(state.number, c, kind), tensor_of(kind, room));
      }
    }
  }

  void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const auto timed = blocks_.timed();
    const auto found = states_.find({at.layer, at.slot});
    DROPTEST_CHECK(found != states_.end(), "a backward pass of attention without a forward pass");
    State& state = found->second;
    const auto mask = state.documents.mask(sequences, shape.batch);
    const std::vector<AttentionChunk> chunks = chunks_of(shape.length, most_tokens(shape));
    const View<const E> out = tokens_of(Blocks::elems(output), shape);
    const View<const E> grad_out = tokens_of(Blocks::elems(grad_output), shape);
    const Span<E> grads = Blocks::elems(grad_qkv);
    Memory::zero(grads, blocks_.processor());
    const auto gradient = [&](ChunkKind kind, const AttentionChunk& chunk) {
      return part_of_qkv(grads, static_cast<std::int64_t>(kind), shape).tokens(chunk.first, chunk.count);
    };
    std::array<std::size_t, kChunkKinds.size()> resident;
    resident.fill(chunks.size());
    const auto view = [&](ChunkKind kind, std::size_t c) {
      if (!storage_) return part_of_qkv(saved_in(state, shape), static_cast<std::int64_t>(kind), shape);
      const View<E> room = room_of(kind, shape, chunks[c]);
      std::size_t& there = resident[static_cast<std::size_t>(kind)];
      if (there != c) storage_->take(chunk_key(state.number, c, kind), tensor_of(kind, room));
      there = c;
      return room;
    };
    const auto expect = [&](ChunkKind kind, std::size_t c) {
      if (storage_ && resident[static_cast<std::size_t>(kind)] != c) storage_->expect(chunk_key(state.number, c, kind));
    };
    const std::vector<ChunkPair> pairs = visible_pairs_of(chunks, mask_of(sequences, shape.batch), shape.batch);
    for (std::size_t p = 0; p < pairs.size(); ++p) {
      const auto [k, q] = pairs[p];
      const View<E> keys = view(ChunkKind::kKeys, k);
      const View<E> values = view(ChunkKind::kValues, k);
      const View<E> queries = view(ChunkKind::kQueries, q);
      if (p + 1 < pairs.size()) {
        expect(ChunkKind::kKeys, pairs[p + 1].keys);
        expect(ChunkKind::kValues, pairs[p + 1].keys);
        expect(ChunkKind::kQueries, pairs[p + 1].queries);
      }
      const AttentionChunk& of_keys = chunks[k];
      const AttentionChunk& of_queries = chunks[q];
      typename Memory::Inputs inputs{queries, keys, values, mask, {}, at.dropout};
      const auto& pattern = patterns_.of(shape, of_queries, of_keys, inputs, blocks_);
      Memory::attend_backward(inputs, {}, pattern,
                              {out.tokens(of_queries.first, of_queries.count), statistics_of(state, shape, of_queries),
                               grad_out.tokens(of_queries.first, of_queries.count)},
                              {gradient(ChunkKind::kQueries, of_queries), gradient(ChunkKind::kKeys, of_keys),
                               gradient(ChunkKind::kValues, of_keys)},
                              scratch_, blocks_.processor());
    }
  }

  std::uint64_t bytes() const override {
    std::uint64_t of_rooms = 0;
    for (const auto& room : rooms_) of_rooms += Memory::bytes_of(room);
    std::uint64_t bytes = scratch_.bytes() + of_rooms;
    if (storage_) bytes += blocks_.storage_bytes(*storage_, of_rooms);
    for (const auto& [place, state] : states_) {
      bytes += Memory::bytes_of(state.qkv, state.log_sum_exp) + state.documents.bytes();
    }
    return bytes;
  }

 private:
  struct State {
    std::uint64_t number = 0;                   ///< distinguishes the states in the keys of the storage
    typename Memory::template Buffer<E> qkv{};  ///< queries, keys and values; empty with chunks
    /// The log-sum-exps [batch, heads, tokens] of each chunk, one chunk after the other.
    typename Memory::template Buffer<typename Memory::Statistic> log_sum_exp{};
    typename Blocks::Documents documents{};
  };

  /// The number of tokens in each chunk except the last one; without chunks, that of the sequence.
  std::int64_t most_tokens(const AttentionShape& shape) const {
    return storage_ ? std::min(chunk_tokens_, shape.length) : shape.length;
  }
  /// Takes the memory for a pass of this shape.
  void take_shape(const AttentionShape& shape, State& state) {
    const auto rows = static_cast<std::uint64_t>(shape.batch * shape.heads);
    Memory::room(state.log_sum_exp, rows * static_cast<std::uint64_t>(shape.length), kMemoryOf, blocks_.processor());
    if (!storage_) return;
    const auto tokens = static_cast<std::uint64_t>(most_tokens(shape) * shape.head_width);
    for (auto& room : rooms_) Memory::room(room, rows * tokens, kMemoryOf, blocks_.processor());
  }
  /// The memory of a state's queries, keys and values, in the order of qkv: [rows, 3, heads, head width].
  Span<E> saved_in(State& state, const AttentionShape& shape) {
    return Memory::room(state.qkv, 3 * head_shape(shape).elems(), kMemoryOf, blocks_.processor());
  }

  View<E> room_of(ChunkKind kind, const AttentionShape& shape, const AttentionChunk& chunk) {
    HeadShape of_chunk = head_shape(shape);
    of_chunk.tokens = chunk.count;
    return Memory::sequence_first(Memory::elems(rooms_[static_cast<std::size_t>(kind)]), of_chunk);
  }
  comm::Tensor tensor_of(ChunkKind kind, const View<E>& room) {
    return Memory::tensor(Memory::elems(rooms_[static_cast<std::size_t>(kind)]).first(room.shape.elems()),
                          blocks_.processor());
  }
  static Span<typename Memory::Statistic> statistics_of(State& state, const AttentionShape& shape,
                                                        const AttentionChunk& chunk) {
    const std::int64_t rows = shape.batch * shape.heads;
    return Memory::elems(state.log_sum_exp)
        .subspan(static_cast<std::size_t>(rows * chunk.first), static_cast<std::size_t>(rows * chunk.count));
  }

  static constexpr const char* kMemoryOf =
      "attention of whole sequences";  ///< names the memory in the error of a full device

  std::int64_t chunk_tokens_;
  Blocks blocks_;
  std::map<std::pair<int, int>, State> states_;  ///< the key is (block, slot), and (-1, -1) for evaluations
  std::array<typename Memory::template Buffer<E>, kChunkKinds.size()> rooms_;
  typename Memory::Scratch scratch_;
  typename Blocks::ChunkPatterns patterns_;
  std::unique_ptr<KeyedStorage> storage_;
};

}  // namespace droptest::models
