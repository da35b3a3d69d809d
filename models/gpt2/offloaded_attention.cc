// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/offloaded_attention.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "models/gpt2/attention_chunks.h"
#include "models/gpt2/attention_views.h"
#include "models/kernels/chunks.h"
#include "models/ops/offload_file.h"
#include "models/phase_times.h"
#include "models/sequence/token_attention.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// Chunks of one kind in memory at once, at most: queries, keys and values that are met, and as many in buffers of the
/// file, on their way.
constexpr std::uint64_t kResidentChunks = 2 * kChunkKinds.size();

template <class T>
class OffloadedAttention final : public StatefulAttention {
 public:
  OffloadedAttention(const AttentionOptions& options, Ops& ops)
      : chunk_tokens_(options.chunk_tokens),
        team_(*ops.team()),
        times_(ops.times()),
        storage_(ops.make_keyed_storage()) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const PhaseScope scope(times_, Phase::kAttention);
    const SingleThreadedLibraries single_threaded;
    const bool is_evaluation = at.slot == AttentionPlace::kEvaluation;
    State& state = states_
                       .try_emplace(is_evaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot),
                                    State{.number = states_.size()})
                       .first->second;
    take_shape(shape, state);
    const AttentionMask mask = mask_of(sequences, shape.batch);
    const std::span<const T> elems = qkv.as<T>();
    const HeadView<T> out = tokens_of(output.as<T>(), shape);
    const std::vector<AttentionChunk> chunks = chunks_of(shape.length, chunk_tokens_);
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const AttentionChunk& chunk = chunks[c];
      const HeadView<T> part = out.tokens(chunk.first, chunk.count);
      const std::span<T> log_sum_exp = statistics_of(state, shape, chunk);
      begin_attention(part, log_sum_exp);
      attend(AttentionInputs<T>{part_of_qkv(elems, 0, shape).tokens(chunk.first, chunk.count),
                                part_of_qkv(elems, 1, shape),
                                part_of_qkv(elems, 2, shape),
                                mask,
                                {},
                                at.dropout},
             pattern_of({chunk.alone()}, {{0, shape.length, 0}}), part, log_sum_exp, std::span(scratch_), team_);
      if (is_evaluation) continue;
      for (const ChunkKind kind : kChunkKinds) {
        const HeadView<T> packed = room_of(kind, shape, chunk);
        copy_heads<T>(part_of_qkv(elems, static_cast<std::int64_t>(kind), shape).tokens(chunk.first, chunk.count),
                      packed);
        storage_->put(chunk_key(state.number, c, kind), elems_of(kind, packed));
      }
    }
  }

  void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const PhaseScope scope(times_, Phase::kAttention);
    const SingleThreadedLibraries single_threaded;
    const auto found = states_.find({at.layer, at.slot});
    DROPTEST_CHECK(found != states_.end(), "a backward pass of attention without a forward pass");
    State& state = found->second;
    const AttentionMask mask = mask_of(sequences, shape.batch);
    const std::vector<AttentionChunk> chunks = chunks_of(shape.length, chunk_tokens_);
    const HeadView<const T> out = tokens_of(output.as<T>(), shape);
    const HeadView<const T> grad_out = tokens_of(grad_output.as<T>(), shape);
    const std::span<T> grads = grad_qkv.as<T>();
    std::ranges::fill(grads, T(0));
    const auto gradient = [&](ChunkKind kind, const AttentionChunk& chunk) {
      return part_of_qkv(grads, static_cast<std::int64_t>(kind), shape).tokens(chunk.first, chunk.count);
    };
    std::array<std::size_t, kChunkKinds.size()> resident;
    resident.fill(chunks.size());
    const auto view = [&](ChunkKind kind, std::size_t c) {
      const HeadView<T> room = room_of(kind, shape, chunks[c]);
      std::size_t& there = resident[static_cast<std::size_t>(kind)];
      if (there != c) storage_->take(chunk_key(state.number, c, kind), elems_of(kind, room));
      there = c;
      return room;
    };
    const auto expect = [&](ChunkKind kind, std::size_t c) {
      if (resident[static_cast<std::size_t>(kind)] != c) storage_->expect(chunk_key(state.number, c, kind));
    };
    const std::vector<ChunkPair> pairs = visible_pairs_of(chunks, mask, shape.batch);
    for (std::size_t p = 0; p < pairs.size(); ++p) {
      const auto [k, q] = pairs[p];
      const HeadView<T> keys = view(ChunkKind::kKeys, k);
      const HeadView<T> values = view(ChunkKind::kValues, k);
      const HeadView<T> queries = view(ChunkKind::kQueries, q);
      if (p + 1 < pairs.size()) {
        expect(ChunkKind::kKeys, pairs[p + 1].keys);
        expect(ChunkKind::kValues, pairs[p + 1].keys);
        expect(ChunkKind::kQueries, pairs[p + 1].queries);
      }
      const AttentionChunk& of_queries = chunks[q];
      attend_backward(
          AttentionInputs<T>{queries, keys, values, mask, {}, at.dropout},
          pattern_of({of_queries.alone()}, {chunks[k].alone()}),
          AttentionResults<T>{out.tokens(of_queries.first, of_queries.count), statistics_of(state, shape, of_queries),
                              grad_out.tokens(of_queries.first, of_queries.count)},
          AttentionGradients<T>{gradient(ChunkKind::kQueries, of_queries), gradient(ChunkKind::kKeys, chunks[k]),
                                gradient(ChunkKind::kValues, chunks[k])},
          std::span(scratch_), team_);
    }
  }

  std::uint64_t bytes() const override {
    std::uint64_t elems = working_;
    for (const auto& [place, state] : states_) elems += state.log_sum_exp.size();
    return sizeof(T) * elems;
  }

 private:
  struct State {
    std::uint64_t number = 0;      ///< of the state, for keys
    std::vector<T> log_sum_exp{};  ///< [batch, heads, tokens] of each chunk, one chunk after the other
  };
  /// Memory for a pass of this shape.
  void take_shape(const AttentionShape& shape, State& state) {
    state.log_sum_exp.resize(static_cast<std::size_t>(shape.batch * shape.heads * shape.length));
    const std::int64_t tokens = std::min(chunk_tokens_, shape.length);
    const auto chunk_elems = static_cast<std::size_t>(shape.batch * tokens * shape.heads * shape.head_width);
    for (std::vector<T>& room : rooms_) room.resize(std::max(room.size(), chunk_elems));
    scratch_.resize(token_attention_scratch_elems(shape.head_width, team_.threads()));
    working_ = std::max(working_, offloaded_attention_size(chunk_tokens_, shape, team_.threads()).working);
  }

  HeadView<T> room_of(ChunkKind kind, const AttentionShape& shape, const AttentionChunk& chunk) {
    HeadShape of_chunk = head_shape(shape);
    of_chunk.tokens = chunk.count;
    return view_of("chunk", std::span(rooms_[static_cast<std::size_t>(kind)]).first(of_chunk.elems()), of_chunk,
                   TokenLayout::kBatchFirst);
  }
  comm::Tensor elems_of(ChunkKind kind, const HeadView<T>& room) {
    return std::span(rooms_[static_cast<std::size_t>(kind)]).first(room.shape.elems());
  }
  static std::span<T> statistics_of(State& state, const AttentionShape& shape, const AttentionChunk& chunk) {
    const std::int64_t rows = shape.batch * shape.heads;
    return std::span(state.log_sum_exp)
        .subspan(static_cast<std::size_t>(rows * chunk.first), static_cast<std::size_t>(rows * chunk.count));
  }

  std::int64_t chunk_tokens_;
  Team team_;
  PhaseTimes* times_;
  std::map<std::pair<int, int>, State> states_;  ///< by block and slot; an evaluation's is of none
  std::array<std::vector<T>, kChunkKinds.size()> rooms_;
  std::vector<T> scratch_;
  std::uint64_t working_ = 0;
  std::unique_ptr<KeyedStorage> storage_;
};

}  // namespace

std::unique_ptr<StatefulAttention> make_offloaded_attention(const AttentionOptions& options, Ops& ops) {
  if (ops.form().types().activations == comm::ElementType::kFloat64) {
    return std::make_unique<OffloadedAttention<double>>(options, ops);
  }
  return std::make_unique<OffloadedAttention<float>>(options, ops);
}

OffloadedAttentionSize offloaded_attention_size(std::int64_t chunk_tokens, const AttentionShape& shape, int threads) {
  HeadShape chunk = head_shape(shape);
  chunk.tokens = std::min(chunk_tokens, shape.length);
  return {static_cast<std::uint64_t>(shape.batch * shape.heads * shape.length),
          kResidentChunks * chunk.elems() + token_attention_scratch_elems(shape.head_width, threads),
          kChunkKinds.size() * head_shape(shape).elems()};
}

}  // namespace droptest::models
