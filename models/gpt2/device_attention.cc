// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/device_attention.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/bfloat16.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream_timer.h"
#include "comm/float16.h"
#include "models/gpt2/device_attention_views.h"
#include "models/gpt2/device_offloaded_attention.h"
#include "models/ops/device_spans.h"
#include "models/phase_times.h"
#include "models/sequence/device_attention.h"
#include "models/sequence/device_dilated_attention.h"
#include "models/sequence/device_sequence_attention.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using Timed = comm::StreamTimer::Scope;
constexpr auto kTimedPhase = static_cast<std::size_t>(Phase::kAttention);

/// Dense attention over the ranks of a sequence group, or dilated attention over one or several ranks: Kernel is
/// DeviceSequenceAttention or DeviceDilatedAttention, and Saved its state.
template <class E, class Kernel, class Saved>
class KernelAttention final : public StatefulAttention {
 public:
  template <class Group, class Options>
  KernelAttention(Group&& group, Options options, std::int64_t heads, Ops& ops)
      : ops_(ops), kernel_(std::forward<Group>(group), std::move(options), heads, *ops.stream()) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const Timed timed(ops_.timer(), kTimedPhase, ops_.stream());
    State& state = states_[at.slot == AttentionPlace::kEvaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot)];
    state.documents.take(sequences.documents, ops_);
    const comm::DeviceSpan<const E> elems = span_of<E>(qkv);
    kernel_.forward({*sequences.parts, state.documents.elems(), at.layer, at.dropout}, part_of_qkv(elems, 0, shape),
                    part_of_qkv(elems, 1, shape), part_of_qkv(elems, 2, shape), tokens_of(span_of<E>(output), shape),
                    state.saved);
  }

  void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const Timed timed(ops_.timer(), kTimedPhase, ops_.stream());
    const auto found = states_.find({at.layer, at.slot});
    DROPTEST_CHECK(found != states_.end(), "a backward pass of attention without a forward pass");
    const State& state = found->second;
    const comm::DeviceSpan<E> elems = span_of<E>(grad_qkv);
    const DeviceSequencePass pass{*sequences.parts, state.documents.elems(), at.layer, at.dropout};
    const DeviceHeadView<const E> grad = tokens_of(span_of<E>(grad_output), shape);
    const DeviceAttentionGradients<E> gradients{part_of_qkv(elems, 0, shape), part_of_qkv(elems, 1, shape),
                                                part_of_qkv(elems, 2, shape)};
    if constexpr (std::is_same_v<Kernel, DeviceDilatedAttention<E>>) {
      ops_.zero(grad_qkv);
      kernel_.backward(pass, tokens_of(span_of<E>(output), shape), grad, state.saved, gradients);
    } else {
      kernel_.backward(pass, grad, state.saved, gradients);
    }
  }

  std::uint64_t bytes() const override {
    std::uint64_t bytes = kernel_.bytes();
    for (const auto& [place, state] : states_) bytes += state.saved.bytes() + state.documents.bytes();
    return bytes;
  }

 private:
  struct State {
    Saved saved;
    DeviceDocuments documents;
  };

  Ops& ops_;
  Kernel kernel_;
  std::map<std::pair<int, int>, State> states_;  ///< by block and slot; an evaluation's is of none
};

/// Dense attention of a rank that has all tokens.
template <class E>
class DeviceAttention final : public StatefulAttention {
 public:
  explicit DeviceAttention(Ops& ops) : ops_(ops), stream_(*ops.stream()) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const Timed timed(ops_.timer(), kTimedPhase, &stream_);
    State& state = states_[at.slot == AttentionPlace::kEvaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot)];
    take_shape(shape, state);
    state.documents.take(sequences.documents, ops_);
    const comm::Tensor saved = state_tensor(state.qkv.elems().first(qkv.count_elems()));
    ops_.convert(qkv, saved);
    const DeviceHeadView<E> out = tokens_of(span_of<E>(output), shape);
    const comm::DeviceSpan<float> log_sum_exp = statistics_of(state.log_sum_exp, shape);
    begin_attention(out, log_sum_exp, stream_);
    attend(inputs_of(state, shape, at.dropout), pattern_for(shape), out, log_sum_exp, stream_);
  }

  void backward(const AttentionPlace& at, const Sequences& /*sequences*/, const AttentionShape& shape,
                comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const Timed timed(ops_.timer(), kTimedPhase, &stream_);
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
    DeviceDocuments documents;
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
  comm::Stream& stream_;
  std::map<std::pair<int, int>, State> states_;  ///< by block and slot; an evaluation's is of none
  comm::DeviceBuffer<float> delta_;
  AttentionShape shape_;  ///< of the pattern
  std::optional<DeviceAttentionPattern> pattern_;
};

template <class E>
std::unique_ptr<StatefulAttention> make(const AttentionOptions& options, const SequenceParallel& ranks,
                                        std::int64_t first_head, std::int64_t heads, Ops& ops) {
  if (!options.branches.empty()) {
    using Dilated = KernelAttention<E, DeviceDilatedAttention<E>, DeviceSavedDilatedAttention<E>>;
    return std::make_unique<Dilated>(ranks.group, DilatedOptions{options.branches, options.gradient, first_head}, heads,
                                     ops);
  }
  if (ranks.ranks() == 1) return std::make_unique<DeviceAttention<E>>(ops);
  using Shared = KernelAttention<E, DeviceSequenceAttention<E>, DeviceSavedAttention<E>>;
  return std::make_unique<Shared>(*ranks.group, options.sequence.factors, heads, ops);
}

}  // namespace

std::unique_ptr<StatefulAttention> make_device_attention(const AttentionOptions& options, const SequenceParallel& ranks,
                                                         std::int64_t first_head, std::int64_t heads, Ops& ops) {
  if (options.chunk_tokens > 0) return make_device_offloaded_attention(options, ops);
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
