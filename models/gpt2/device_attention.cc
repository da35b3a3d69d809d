// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/device_attention.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/bfloat16.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream_timer.h"
#include "comm/float16.h"
#include "models/ops/device_spans.h"
#include "models/phase_times.h"
#include "models/sequence/device_attention.h"
#include "models/sequence/device_sequence_attention.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// Each row's queries (0), keys (1) or values (2), of [rows, 3, heads, head width].
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
/// Of [rows, heads, head width].
template <class E>
DeviceHeadView<E> tokens_of(comm::DeviceSpan<E> elems, const AttentionShape& s) {
  const std::int64_t row = s.heads * s.head_width;
  return {elems, {s.batch, s.length, s.heads, s.head_width}, s.length * row, row, s.head_width};
}

bool equal(const AttentionShape& a, const AttentionShape& b) {
  return a.batch == b.batch && a.length == b.length && a.heads == b.heads && a.head_width == b.head_width;
}

/// Memory for so many elements, which later work may use; content unspecified.
template <class T>
void grow(comm::DeviceBuffer<T>& buffer, std::size_t count, const char* what, comm::Stream& stream) {
  if (buffer.elems().size() >= count) return;
  stream.synchronize();  // earlier work may use the old memory
  buffer = {};
  buffer = comm::DeviceBuffer<T>(count, what);
}

using Timed = comm::StreamTimer::Scope;
constexpr auto kTimedPhase = static_cast<std::size_t>(Phase::kAttention);

/// The numbers of documents of whole sequences, which every micro-batch in flight has.
class DeviceDocuments {
 public:
  void take(const std::vector<std::int32_t>& documents, Ops& ops) {
    count_ = documents.size();
    if (documents.empty()) return;
    grow(buffer_, count_, "numbers of documents", *ops.stream());
    ops.take_tokens(documents, {buffer_.elems().data(), count_});
  }
  comm::DeviceSpan<const std::int32_t> elems() const { return buffer_.elems().first(count_); }
  std::uint64_t bytes() const { return buffer_.bytes(); }

 private:
  comm::DeviceBuffer<std::int32_t> buffer_;
  std::size_t count_ = 0;
};

/// Over the ranks of a sequence group.
template <class E>
class SharedAttention final : public StatefulAttention {
 public:
  SharedAttention(const AttentionOptions& options, comm::Communicator& group, std::int64_t heads, Ops& ops)
      : ops_(ops), kernel_(group, options.sequence.factors, heads, *ops.stream()) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const Timed timed(ops_.timer(), kTimedPhase, ops_.stream());
    State& state = states_[at.slot == AttentionPlace::kEvaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot)];
    state.documents.take(sequences.documents, ops_);
    const comm::DeviceSpan<const E> elems = span_of<E>(qkv);
    kernel_.forward({*sequences.parts, state.documents.elems(), at.layer}, part_of_qkv(elems, 0, shape),
                    part_of_qkv(elems, 1, shape), part_of_qkv(elems, 2, shape), tokens_of(span_of<E>(output), shape),
                    state.saved);
  }

  void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                comm::ConstTensor /*output*/, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const Timed timed(ops_.timer(), kTimedPhase, ops_.stream());
    const auto found = states_.find({at.layer, at.slot});
    DROPTEST_CHECK(found != states_.end(), "a backward pass of attention without a forward pass");
    const State& state = found->second;
    const comm::DeviceSpan<E> elems = span_of<E>(grad_qkv);
    kernel_.backward({*sequences.parts, state.documents.elems(), at.layer}, tokens_of(span_of<E>(grad_output), shape),
                     state.saved,
                     {part_of_qkv(elems, 0, shape), part_of_qkv(elems, 1, shape), part_of_qkv(elems, 2, shape)});
  }

  std::uint64_t bytes() const override {
    std::uint64_t bytes = kernel_.bytes();
    for (const auto& [place, state] : states_) bytes += state.saved.bytes() + state.documents.bytes();
    return bytes;
  }

 private:
  struct State {
    DeviceSavedAttention<E> saved;
    DeviceDocuments documents;
  };

  Ops& ops_;
  DeviceSequenceAttention<E> kernel_;
  std::map<std::pair<int, int>, State> states_;  ///< by block and slot; an evaluation's is of none
};

/// Of a rank that has all tokens.
template <class E>
class DeviceAttention final : public StatefulAttention {
 public:
  DeviceAttention(const AttentionOptions& options, std::int64_t first_head, Ops& ops)
      : options_(options), first_head_(first_head), ops_(ops), stream_(*ops.stream()) {}

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
    for (const DeviceAttentionPattern& pattern : patterns_for(shape)) {
      attend(inputs_of(state, shape), pattern, out, log_sum_exp, stream_);
    }
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
    for (const DeviceAttentionPattern& pattern : patterns_for(shape)) {
      attend_backward(inputs_of(state, shape), pattern, results, gradients, statistics_of(delta_, shape), stream_);
    }
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
    grow(state.qkv, 3 * rows * static_cast<std::size_t>(shape.head_width), "queries, keys and values", stream_);
    grow(state.log_sum_exp, rows, "log-sum-exps of attention", stream_);
    grow(delta_, rows, "scratch of attention", stream_);
  }

  static comm::DeviceSpan<float> statistics_of(comm::DeviceBuffer<float>& buffer, const AttentionShape& shape) {
    return buffer.elems().first(static_cast<std::size_t>(shape.batch * shape.heads * shape.length));
  }

  DeviceAttentionInputs<E> inputs_of(const State& state, const AttentionShape& shape) const {
    const comm::DeviceSpan<const E> qkv = state.qkv.elems();
    return {part_of_qkv(qkv, 0, shape),
            part_of_qkv(qkv, 1, shape),
            part_of_qkv(qkv, 2, shape),
            {Causality::kCausal, shape.length, state.documents.elems()}};
  }

  /// One for each branch, or one of all tokens.
  const std::vector<DeviceAttentionPattern>& patterns_for(const AttentionShape& shape) {
    if (!patterns_.empty() && equal(shape_, shape)) return patterns_;
    if (!patterns_.empty()) stream_.synchronize();  // earlier work may use the old ones
    patterns_.clear();
    shape_ = shape;
    const auto add = [&](const AttentionPattern& pattern) {
      patterns_.emplace_back(pattern, shape.heads, shape.head_width, stream_);
    };
    if (options_.branches.empty()) add(pattern_of({{0, shape.length, 0}}, {{0, shape.length, 0}}));
    for (const DilatedBranch& branch : options_.branches) {
      add(dilated_plan(branch, SequenceParts::even(shape.length, 1), 0, first_head_, shape.heads, Causality::kCausal)
              .local);
    }
    return patterns_;
  }

  AttentionOptions options_;
  std::int64_t first_head_;
  Ops& ops_;
  comm::Stream& stream_;
  std::map<std::pair<int, int>, State> states_;  ///< by block and slot; an evaluation's is of none
  comm::DeviceBuffer<float> delta_;
  AttentionShape shape_;  ///< of the patterns
  std::vector<DeviceAttentionPattern> patterns_;
};

void refuse(const std::string& got) {
  throw ConfigError("GPT-2 on a CUDA device: got " + got + ", want the CPU, which alone computes it");
}

template <class E>
std::unique_ptr<StatefulAttention> make(const AttentionOptions& options, const SequenceParallel& ranks,
                                        std::int64_t first_head, std::int64_t heads, Ops& ops) {
  if (ranks.ranks() > 1) return std::make_unique<SharedAttention<E>>(options, *ranks.group, heads, ops);
  return std::make_unique<DeviceAttention<E>>(options, first_head, ops);
}

}  // namespace

std::unique_ptr<StatefulAttention> make_device_attention(const AttentionOptions& options, const SequenceParallel& ranks,
                                                         std::int64_t first_head, std::int64_t heads, Ops& ops) {
  if (options.chunk_tokens > 0) refuse("attention in chunks");
  if (!options.branches.empty() && ranks.ranks() > 1) refuse("dilated attention over sequence ranks");
  if (!options.branches.empty() && options.gradient == BranchGradient::kStopped) {
    refuse("dilated attention with a stopped gradient");
  }
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
