// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/stateful_attention.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "models/gpt2/cached_attention.h"
#include "models/phase_times.h"
#include "models/sequence/dilated_attention.h"
#include "models/sequence/sequence_attention.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// Queries (0), keys (1) or values (2) of [rows, 3, heads, head width].
template <class T>
HeadView<T> part_of_qkv(std::span<T> elems, std::int64_t part, const AttentionShape& s) {
  const std::int64_t row = s.heads * s.head_width;
  return {
      elems.data() + part * row, {s.batch, s.length, s.heads, s.head_width}, s.length * 3 * row, 3 * row, s.head_width};
}

std::uint64_t elems_of(const AttentionShape& s, std::int64_t tokens, std::int64_t heads) {
  return HeadShape{s.batch, tokens, heads, s.head_width}.elems();
}

/// Elements of one state and of the working memory.
struct StateSize {
  std::uint64_t state = 0;
  std::uint64_t working = 0;
};

StateSize dense_size(const SequenceFactors& factors, const SequenceParts& parts, int rank, const AttentionShape& s) {
  const int first = rank / factors.ulysses * factors.ulysses;
  std::int64_t tokens = 0;
  for (int r = first; r < first + factors.ulysses; ++r) tokens += parts.length_of(r);
  const auto heads = static_cast<std::int64_t>(comm::even_counts(
      static_cast<std::uint64_t>(s.heads), factors.ulysses)[static_cast<std::size_t>(rank % factors.ulysses)]);
  const std::uint64_t tensor = elems_of(s, tokens, heads);
  // Queries, keys, values, output and their log-sum-exp; gradients of the first three and of the output.
  StateSize size{4 * tensor + tensor / static_cast<std::uint64_t>(s.head_width), 4 * tensor};
  if (factors.ulysses > 1) size.working += elems_of(s, parts.length_of(rank), s.heads);  // packed for the exchange
  if (factors.ring > 1) size.working += 8 * tensor;  // keys, values and their gradients, here and on their way
  return size;
}

StateSize dilated_size(const AttentionOptions& options, const SequenceParts& parts, int rank, const AttentionShape& s) {
  const std::int64_t tokens = parts.length_of(rank);
  const std::uint64_t tensor = elems_of(s, tokens, s.heads);
  StateSize size{4 * tensor + tensor / static_cast<std::uint64_t>(s.head_width), 0};
  std::uint64_t most = 0;
  for (const DilatedBranch& branch : options.branches) {
    const DilatedPlan plan = dilated_plan(branch, parts, rank, 0, s.heads, Causality::kCausal);
    const std::uint64_t gathered = elems_of(s, plan.gathered_tokens, s.heads);
    size.state += 2 * gathered;
    most = std::max(most, gathered);
  }
  size.working = 4 * most + (options.gradient == BranchGradient::kStopped ? 2 * tensor : 0);
  return size;
}

StateSize size_of(const AttentionOptions& options, const SequenceParts& parts, int rank, const AttentionShape& s) {
  return options.branches.empty() ? dense_size(options.sequence.factors, parts, rank, s)
                                  : dilated_size(options, parts, rank, s);
}

/// Kernel is SequenceAttention or DilatedAttention, and Saved its state, of elements T.
template <class T, class Kernel, class Saved>
class HostAttention final : public StatefulAttention {
 public:
  template <class Factors>
  HostAttention(const AttentionOptions& options, const SequenceParallel& ranks, Factors factors, std::int64_t heads,
                Ops& ops)
      : options_(options),
        rank_(ranks.rank()),
        kernel_(ranks.group, std::move(factors), heads),
        team_(*ops.team()),
        times_(ops.times()) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const PhaseScope scope(times_, Phase::kAttention);
    State& state = states_[at.slot == AttentionPlace::kEvaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot)];
    state.size = size_of(options_, *sequences.parts, rank_, shape);
    const AttentionMask mask = mask_of(sequences, shape);
    const std::span<const T> elems = qkv.as<T>();
    kernel_.forward({*sequences.parts, mask, at.layer}, part_of_qkv(elems, 0, shape), part_of_qkv(elems, 1, shape),
                    part_of_qkv(elems, 2, shape), tokens_of(output.as<T>(), shape), state.saved, team_);
  }

  void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const PhaseScope scope(times_, Phase::kAttention);
    const auto found = states_.find({at.layer, at.slot});
    DROPTEST_CHECK(found != states_.end(), "a backward pass of attention without a forward pass");
    const AttentionMask mask = mask_of(sequences, shape);
    const std::span<T> elems = grad_qkv.as<T>();
    kernel_.backward({*sequences.parts, mask, at.layer}, tokens_of(grad_output.as<T>(), shape), found->second.saved,
                     {part_of_qkv(elems, 0, shape), part_of_qkv(elems, 1, shape), part_of_qkv(elems, 2, shape)}, team_);
  }

  std::uint64_t bytes() const override {
    StateSize all;
    for (const auto& [place, state] : states_) {
      all.state += state.size.state;
      all.working = std::max(all.working, state.size.working);
    }
    return sizeof(T) * (all.state + all.working);
  }

 private:
  struct State {
    Saved saved;
    StateSize size;
  };

  template <class E>
  static HeadView<E> tokens_of(std::span<E> elems, const AttentionShape& s) {
    return view_of("attention", elems, {s.batch, s.length, s.heads, s.head_width}, TokenLayout::kBatchFirst);
  }
  static AttentionMask mask_of(const Sequences& sequences, const AttentionShape& shape) {
    if (sequences.documents.empty()) return AttentionMask(Causality::kCausal);
    const std::int64_t length = sequences.parts->length();
    return {Causality::kCausal, {shape.batch, length, length}, {}, sequences.documents};
  }

  AttentionOptions options_;
  int rank_;
  Kernel kernel_;
  Team team_;
  PhaseTimes* times_;
  std::map<std::pair<int, int>, State> states_;  ///< by block and slot; an evaluation's is of none
};

template <class T>
std::unique_ptr<StatefulAttention> make_host_attention(const AttentionOptions& options, const SequenceParallel& ranks,
                                                       std::int64_t first_head, std::int64_t heads, Ops& ops) {
  if (options.branches.empty()) {
    return std::make_unique<HostAttention<T, SequenceAttention<T>, SavedAttention<T>>>(
        options, ranks, options.sequence.factors, heads, ops);
  }
  return std::make_unique<HostAttention<T, DilatedAttention<T>, SavedDilatedAttention<T>>>(
      options, ranks, DilatedOptions{options.branches, options.gradient, first_head}, heads, ops);
}

}  // namespace

std::unique_ptr<StatefulAttention> make_stateful_attention(const AttentionOptions& options,
                                                           const SequenceParallel& ranks, std::int64_t first_head,
                                                           std::int64_t heads, Ops& ops) {
  if (!options.is_stateful()) return nullptr;
  if (options.past == AttentionOptions::Past::kCached) return make_cached_attention(ops);
  if (ops.team() == nullptr) {
    throw ConfigError(
        "GPT-2: sequence ranks, documents and dilated attention: got a CUDA device, want the CPU: their kernels for "
        "devices are planned, not built");
  }
  if (ops.form().types().activations == comm::ElementType::kFloat64) {
    return make_host_attention<double>(options, ranks, first_head, heads, ops);
  }
  return make_host_attention<float>(options, ranks, first_head, heads, ops);
}

std::uint64_t stateful_attention_bytes(const AttentionOptions& options, int rank, const AttentionShape& whole,
                                       comm::ElementType type, std::uint64_t states) {
  if (!options.is_stateful() || options.past == AttentionOptions::Past::kCached) return 0;
  const StateSize size = size_of(options, options.sequence.parts(whole.length), rank, whole);
  return comm::element_bytes(type) * (states * size.state + size.working);
}

}  // namespace droptest::models
