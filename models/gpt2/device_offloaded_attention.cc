// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/device_offloaded_attention.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "comm/bfloat16.h"
#include "comm/device/device_buffer.h"
#include "comm/device/device_tensor.h"
#include "comm/device/stream_timer.h"
#include "comm/float16.h"
#include "models/gpt2/attention_chunks.h"
#include "models/gpt2/attention_views.h"
#include "models/gpt2/device_attention_views.h"
#include "models/ops/cuda_offload.h"
#include "models/ops/device_spans.h"
#include "models/phase_times.h"
#include "models/sequence/device_heads.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using Timed = comm::StreamTimer::Scope;
constexpr auto kTimedPhase = static_cast<std::size_t>(Phase::kAttention);

template <class E>
class DeviceOffloadedAttention final : public StatefulAttention {
 public:
  DeviceOffloadedAttention(const AttentionOptions& options, Ops& ops)
      : chunk_tokens_(options.chunk_tokens), ops_(ops), stream_(*ops.stream()), storage_(stream_) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const Timed timed(ops_.timer(), kTimedPhase, &stream_);
    const bool is_evaluation = at.slot == AttentionPlace::kEvaluation;
    const auto place = is_evaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot);
    State& state = states_[place];
    if (state.number == kNoNumber) state.number = states_.size() - 1;
    take_shape(shape, state);
    state.documents.take(sequences.documents, ops_);
    const comm::DeviceSpan<const E> elems = span_of<E>(qkv);
    const DeviceHeadView<E> out = tokens_of(span_of<E>(output), shape);
    const std::vector<AttentionChunk> chunks = chunks_of(shape.length, chunk_tokens_);
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const AttentionChunk& chunk = chunks[c];
      const auto part = [&](ChunkKind kind) { return part_of_qkv(elems, static_cast<std::int64_t>(kind), shape); };
      const DeviceHeadView<E> of_chunk = out.tokens(chunk.first, chunk.count);
      const comm::DeviceSpan<float> log_sum_exp = statistics_of(state, shape, chunk);
      begin_attention(of_chunk, log_sum_exp, stream_);
      attend(DeviceAttentionInputs<E>{part(ChunkKind::kQueries).tokens(chunk.first, chunk.count),
                                      part(ChunkKind::kKeys),
                                      part(ChunkKind::kValues),
                                      mask_of(state, shape),
                                      {},
                                      at.dropout,
                                      chunk.first,
                                      0},
             pattern_for(shape, chunk.count, shape.length), of_chunk, log_sum_exp, stream_);
      if (is_evaluation) continue;
      for (const ChunkKind kind : kChunkKinds) {
        const DeviceHeadView<E> room = room_of(kind, shape, chunk);
        copy_heads<E>(part(kind).tokens(chunk.first, chunk.count), room, stream_);
        storage_.put(chunk_key(state.number, c, kind), comm::device_tensor(room.elems, stream_));
      }
    }
  }

  void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const Timed timed(ops_.timer(), kTimedPhase, &stream_);
    const auto found = states_.find({at.layer, at.slot});
    DROPTEST_CHECK(found != states_.end(), "a backward pass of attention without a forward pass");
    State& state = found->second;
    const std::vector<AttentionChunk> chunks = chunks_of(shape.length, chunk_tokens_);
    const DeviceHeadView<const E> out = tokens_of(span_of<E>(output), shape);
    const DeviceHeadView<const E> grad_out = tokens_of(span_of<E>(grad_output), shape);
    ops_.zero(grad_qkv);
    const auto gradient = [&](ChunkKind kind, const AttentionChunk& chunk) {
      return part_of_qkv(span_of<E>(grad_qkv), static_cast<std::int64_t>(kind), shape).tokens(chunk.first, chunk.count);
    };
    std::array<std::size_t, kChunkKinds.size()> resident;
    resident.fill(chunks.size());
    const auto view = [&](ChunkKind kind, std::size_t c) {
      const DeviceHeadView<E> room = room_of(kind, shape, chunks[c]);
      std::size_t& there = resident[static_cast<std::size_t>(kind)];
      if (there != c) storage_.take(chunk_key(state.number, c, kind), comm::device_tensor(room.elems, stream_));
      there = c;
      return room;
    };
    const auto expect = [&](ChunkKind kind, std::size_t c) {
      if (resident[static_cast<std::size_t>(kind)] != c) storage_.expect(chunk_key(state.number, c, kind));
    };
    const std::vector<ChunkPair> pairs = visible_pairs_of(chunks, models::mask_of(sequences, shape.batch), shape.batch);
    for (std::size_t p = 0; p < pairs.size(); ++p) {
      const auto [k, q] = pairs[p];
      const DeviceHeadView<E> keys = view(ChunkKind::kKeys, k);
      const DeviceHeadView<E> values = view(ChunkKind::kValues, k);
      const DeviceHeadView<E> queries = view(ChunkKind::kQueries, q);
      if (p + 1 < pairs.size()) {
        expect(ChunkKind::kKeys, pairs[p + 1].keys);
        expect(ChunkKind::kValues, pairs[p + 1].keys);
        expect(ChunkKind::kQueries, pairs[p + 1].queries);
      }
      const AttentionChunk& of_keys = chunks[k];
      const AttentionChunk& of_queries = chunks[q];
      const comm::DeviceSpan<float> log_sum_exp = statistics_of(state, shape, of_queries);
      attend_backward(
          DeviceAttentionInputs<E>{
              queries, keys, values, mask_of(state, shape), {}, at.dropout, of_queries.first, of_keys.first},
          pattern_for(shape, of_queries.count, of_keys.count),
          DeviceAttentionResults<E>{out.tokens(of_queries.first, of_queries.count), log_sum_exp,
                                    grad_out.tokens(of_queries.first, of_queries.count)},
          DeviceAttentionGradients<E>{gradient(ChunkKind::kQueries, of_queries), gradient(ChunkKind::kKeys, of_keys),
                                      gradient(ChunkKind::kValues, of_keys)},
          delta_.elems().first(log_sum_exp.size()), stream_);
    }
  }

  std::uint64_t bytes() const override {
    std::uint64_t bytes = delta_.bytes() + storage_.buffer_bytes();
    for (const comm::DeviceBuffer<E>& room : rooms_) bytes += room.bytes();
    for (const auto& [place, state] : states_) bytes += state.log_sum_exp.bytes() + state.documents.bytes();
    return bytes;
  }

 private:
  static constexpr std::uint64_t kNoNumber = ~std::uint64_t{0};
  struct State {
    std::uint64_t number = kNoNumber;       ///< of the state, for keys
    comm::DeviceBuffer<float> log_sum_exp;  ///< [batch, heads, tokens] of each chunk, one chunk after the other
    DeviceDocuments documents;
  };

  static DeviceAttentionMask mask_of(const State& state, const AttentionShape& shape) {
    return {Causality::kCausal, shape.length, state.documents.elems()};
  }

  /// Memory for a pass of this shape.
  void take_shape(const AttentionShape& shape, State& state) {
    const auto rows = static_cast<std::uint64_t>(shape.batch * shape.heads);
    const auto tokens = static_cast<std::uint64_t>(std::min(chunk_tokens_, shape.length));
    room_in(state.log_sum_exp, rows * static_cast<std::uint64_t>(shape.length), "log-sum-exps of attention", stream_);
    room_in(delta_, rows * tokens, "scratch of attention", stream_);
    for (comm::DeviceBuffer<E>& room : rooms_) {
      room_in(room, rows * tokens * static_cast<std::uint64_t>(shape.head_width), "chunk of attention", stream_);
    }
  }

  /// Its elems are exactly those of the chunk.
  DeviceHeadView<E> room_of(ChunkKind kind, const AttentionShape& shape, const AttentionChunk& chunk) {
    HeadShape of_chunk = head_shape(shape);
    of_chunk.tokens = chunk.count;
    return sequence_first(rooms_[static_cast<std::size_t>(kind)].elems(), of_chunk);
  }
  static comm::DeviceSpan<float> statistics_of(State& state, const AttentionShape& shape, const AttentionChunk& chunk) {
    const std::int64_t rows = shape.batch * shape.heads;
    return state.log_sum_exp.elems().subspan(static_cast<std::size_t>(rows * chunk.first),
                                             static_cast<std::size_t>(rows * chunk.count));
  }

  /// Of so many queries with so many keys, whose positions count from their first one.
  const DeviceAttentionPattern& pattern_for(const AttentionShape& shape, std::int64_t queries, std::int64_t keys) {
    if (!have_equal_patterns(shape_, shape)) {
      if (!patterns_.empty()) stream_.synchronize();  // earlier work may use them
      patterns_.clear();
      shape_ = shape;
    }
    const auto found = patterns_.find({queries, keys});
    if (found != patterns_.end()) return found->second;
    return patterns_
        .try_emplace({queries, keys}, pattern_of({{0, queries, 0}}, {{0, keys, 0}}), shape.heads, shape.head_width,
                     stream_)
        .first->second;
  }

  std::int64_t chunk_tokens_;
  Ops& ops_;
  comm::Stream& stream_;
  std::map<std::pair<int, int>, State> states_;  ///< by block and slot; an evaluation's is of none
  std::array<comm::DeviceBuffer<E>, kChunkKinds.size()> rooms_;
  comm::DeviceBuffer<float> delta_;
  AttentionShape shape_;  ///< of the patterns
  std::map<std::pair<std::int64_t, std::int64_t>, DeviceAttentionPattern> patterns_;
  CudaOffload storage_;
};

}  // namespace

std::unique_ptr<StatefulAttention> make_device_offloaded_attention(const AttentionOptions& options, Ops& ops) {
  switch (ops.form().types().activations) {
    case comm::ElementType::kBfloat16:
      return std::make_unique<DeviceOffloadedAttention<comm::Bf16>>(options, ops);
    case comm::ElementType::kFloat16:
      return std::make_unique<DeviceOffloadedAttention<comm::Fp16>>(options, ops);
    default:
      return std::make_unique<DeviceOffloadedAttention<float>>(options, ops);
  }
}

}  // namespace droptest::models
