// SPDX-License-Identifier: Apache-2.0
#include "models/attention/device_attention.h"

#include <map>
#include <optional>

#include "comm/bfloat16.h"
#include "comm/device/device_buffer.h"
#include "comm/float16.h"
#include "models/attention/block_attention.h"
#include "models/attention/device_attention_views.h"
#include "models/attention/device_dilated_attention.h"
#include "models/attention/device_offloaded_attention.h"
#include "models/attention/device_sequence_attention.h"
#include "models/attention/device_token_attention.h"
#include "models/attention/offloaded_attention.h"
#include "models/ops/device_spans.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// Dense attention of a rank that has all tokens.
template <class E>
class DeviceAttention final : public StatefulAttention {
 public:
  explicit DeviceAttention(Ops& ops) : ops_(ops), blocks_(ops), stream_(*ops.stream()) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const auto timed = blocks_.timed();
    State& state = states_[at.slot == AttentionPlace::kEvaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot)];
    take_shape(shape, state);
    state.documents.take(sequences, blocks_);
    const comm::Tensor saved = state_tensor(state.qkv.elems().first(qkv.count_elems()));
    ops_.convert(qkv, saved);
    const DeviceHeadView<E> out = tokens_of(span_of<E>(output), shape);
    const comm::DeviceSpan<float> log_sum_exp = statistics_of(state.log_sum_exp, shape);
    begin_attention(out, log_sum_exp, stream_);
    attend(inputs_of(state, shape, at.dropout), pattern_for(shape), out, log_sum_exp, stream_);
  }

  void backward(const AttentionPlace& at, const Sequences& /*sequences*/, const AttentionShape& shape,
                comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const auto timed = blocks_.timed();
    const auto found = states_.find({at.layer, at.slot});
    DROPTEST_CHECK(found != states_.end(), "a backward pass of attention without a forward pass");
    State& state = found->second;
    ops_.zero(grad_qkv);
    const comm::DeviceSpan<E> grads = span_of<E>(grad_qkv);
    const DeviceAttentionGradients<E> gradients{part_of_qkv(grads, 0, shape), part_of_qkv(grads, 1, shape),
                                                part_of_qkv(grads, 2, shape)};
    const DeviceAttentionResults<E> results{tokens_of(span_of<E>(output), shape),
                                            statistics_of(state.log_sum_exp, shape),
                                            tokens_of(span_of<E>(grad_output), shape)};
    attend_backward(inputs_of(state, shape, at.dropout), pattern_for(shape), results, gradients,
                    statistics_of(delta_, shape), stream_);
  }

  std::uint64_t bytes() const override {
    std::uint64_t bytes = delta_.bytes();
    for (const auto& [place, state] : states_) {
      bytes += state.qkv.bytes() + state.log_sum_exp.bytes() + state.documents.bytes();
    }
    return bytes;
  }

 private:
  struct State {
    comm::DeviceBuffer<E> qkv;
    comm::DeviceBuffer<float> log_sum_exp;
    typename DeviceBlocks<E>::Documents documents;
  };

  comm::Tensor state_tensor(comm::DeviceSpan<E> elems) {
    return {
        comm::element_type_of<E>(), {reinterpret_cast<std::byte*>(elems.data()), elems.size() * sizeof(E)}, &stream_};
  }

  void take_shape(const AttentionShape& shape, State& state) {
    const auto rows = static_cast<std::size_t>(shape.batch * shape.length * shape.heads);
    room_in(state.qkv, 3 * rows * static_cast<std::size_t>(shape.head_width), "queries, keys and values", stream_);
    room_in(state.log_sum_exp, rows, "log-sum-exps of attention", stream_);
    room_in(delta_, rows, "scratch of attention", stream_);
  }

  static comm::DeviceSpan<float> statistics_of(comm::DeviceBuffer<float>& buffer, const AttentionShape& shape) {
    return buffer.elems().first(static_cast<std::size_t>(shape.batch * shape.heads * shape.length));
  }

  DeviceAttentionInputs<E> inputs_of(const State& state, const AttentionShape& shape,
                                     const DropoutMask& dropout) const {
    const comm::DeviceSpan<const E> qkv = state.qkv.elems();
    return {part_of_qkv(qkv, 0, shape),
            part_of_qkv(qkv, 1, shape),
            part_of_qkv(qkv, 2, shape),
            {Causality::kCausal, shape.length, state.documents.elems()},
            {},
            dropout};
  }

  /// Of all tokens.
  const DeviceAttentionPattern& pattern_for(const AttentionShape& shape) {
    if (pattern_ && have_equal_patterns(shape_, shape)) return *pattern_;
    if (pattern_) stream_.synchronize();  // earlier work may use the old one
    shape_ = shape;
    return pattern_.emplace(pattern_of({{0, shape.length, 0}}, {{0, shape.length, 0}}), shape.heads, shape.head_width,
                            stream_);
  }

  Ops& ops_;
  DeviceBlocks<E> blocks_;
  comm::Stream& stream_;
  std::map<std::pair<int, int>, State> states_;  ///< by block and slot; an evaluation's is of none
  comm::DeviceBuffer<float> delta_;
  AttentionShape shape_;  ///< of the pattern
  std::optional<DeviceAttentionPattern> pattern_;
};

template <class E>
std::unique_ptr<StatefulAttention> make(const AttentionOptions& options, const SequenceParallel& ranks,
                                        std::int64_t first_head, std::int64_t heads, Ops& ops) {
  if (options.branches.empty() && ranks.ranks() == 1) return std::make_unique<DeviceAttention<E>>(ops);
  return make_block_attention<DeviceBlocks<E>>(options, ranks, first_head, heads, ops);
}

}  // namespace

std::unique_ptr<StatefulAttention> make_device_attention(const AttentionOptions& options, const SequenceParallel& ranks,
                                                         std::int64_t first_head, std::int64_t heads, Ops& ops) {
  if (is_dense_in_chunks(options)) return make_device_offloaded_attention(options, ops);
  switch (ops.form().types().activations) {
    case comm::ElementType::kBfloat16:
      return make<comm::Bf16>(options, ranks, first_head, heads, ops);
    case comm::ElementType::kFloat16:
      return make<comm::Fp16>(options, ranks, first_head, heads, ops);
    default:
      return make<float>(options, ranks, first_head, heads, ops);
  }
}

}  // namespace droptest::models
