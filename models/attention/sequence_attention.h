// SPDX-License-Identifier: Apache-2.0
// Attention over the tokens of several ranks: Ulysses, a ring, or any combination of the two.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/attention_ring.h"
#include "models/attention/head_exchange.h"
#include "models/attention/host_heads.h"
#include "models/attention/sequence_factors.h"
#include "models/attention/sequence_parts.h"

namespace droptest::models {

/// The inputs that all ranks of a call have in common. Borrowed; backward() gets the same as forward(). Mask: the mask
/// type of the memory.
template <class Mask>
struct SequencePassOf {
  const SequenceParts& parts;
  Mask mask;
  int layer = -1;
  /// Dropout of the probabilities. Its first head is the first head of the group, and its first position is that of
  /// token 0 of the sequence, so that the draws are those of one rank with all tokens and heads.
  DropoutMask dropout{};
};
using SequencePass = SequencePassOf<const AttentionMask&>;

/// The saved activations of a forward pass: this rank's heads of all tokens of its Ulysses group, each tensor [tokens,
/// batch, heads, width].
template <class Memory>
struct SavedAttentionOf {
  template <class U>
  using Buffer = typename Memory::template Buffer<U>;
  Buffer<typename Memory::Element> queries;
  Buffer<typename Memory::Element> keys;
  Buffer<typename Memory::Element> values;
  Buffer<typename Memory::Element> output;
  Buffer<typename Memory::Statistic> log_sum_exp;  ///< [batch, heads, tokens]
  std::uint64_t elems = 0;                         ///< elements of each of the four tensors
  Absences absent;                                 ///< flags of absent keys; empty: no key is absent
  AttentionLosses lost;
  RingLosses<Memory> losses;

  /// Calls f(buffer, elements) for queries, keys, values and the output.
  template <class F>
  void for_each_tensor(const F& f) {
    for (auto* buffer : {&queries, &keys, &values, &output}) f(*buffer, elems);
  }
  /// Swaps the memory of these tensors with that of `other`.
  void swap_tensors(SavedAttentionOf& other) {
    std::swap(queries, other.queries);
    std::swap(keys, other.keys);
    std::swap(values, other.values);
    std::swap(output, other.output);
  }

  /// The size of the tensors. Flags and the lists of lost elements are not counted.
  std::uint64_t bytes() const {
    std::uint64_t bytes = Memory::bytes_of(queries, keys, values, output, log_sum_exp);
    for (const auto& hop : losses.hops) bytes += Memory::bytes_of(hop.keys.values, hop.values.values);
    return bytes;
  }
};

/// Throws: ConfigError that names the tensor and the axis, unless `got` is the shape of this rank's tokens with all
/// heads and with the batch and width of `like`; ConfigError for parts of another number of ranks.
void check_rank_shape(const SequenceParts& parts, const SequenceFactors& factors, int rank, std::int64_t heads,
                      std::string_view tensor, const HeadShape& got, const HeadShape& like);

/// Attention of a sequence group. The fill of class sequence_forward decides about lost elements. With the fill
/// `absent`, a key leaves the softmax of this rank, and of the ranks further along the ring, if an element of the key
/// or of its value was lost; lost elements of queries and outputs are 0. Other fills give lost elements a value. Under
/// Communicator::stops_lost_gradients() the backward pass is the exact gradient of the forward pass with its losses;
/// otherwise the gradient of a filled value goes to the lost value. Messages: attention.queries, .keys, .values and
/// .output in class sequence_forward, and the gradients with .grad in class sequence_backward; a ring appends .hop1,
/// ... to the names. Memory: HostHeads, DeviceHeads or PlannedHeads. Owner: one rank. Ranks: all make the same calls.
/// Determinism: that of the communicator; sums over the parts of a ring begin with a rank's own part.
template <class Memory>
class SequenceAttentionOf {
  using E = typename Memory::Element;
  using Processor = typename Memory::Processor;
  template <class U>
  using View = typename Memory::template View<U>;
  template <class U>
  using Buffer = typename Memory::template Buffer<U>;

 public:
  using Saved = SavedAttentionOf<Memory>;
  using Pass = SequencePassOf<typename Memory::Mask>;

  /// `group` is borrowed; null: one rank. The constructor splits the group. Ranks: all of the group. Throws:
  /// ConfigError if the product of the factors is not the number of ranks, and for fewer heads than Ulysses ranks.
  SequenceAttentionOf(comm::Communicator* group, const SequenceFactors& factors, std::int64_t heads)
      : rank_(checked_rank(group, factors)),
        factors_(factors),
        heads_(heads),
        exchange_(part_of_group(group, factors.ulysses, 1, owned_), heads),
        ring_(part_of_group(group, factors.ring, factors.ulysses, owned_)) {}

  /// Queries, keys, values and the output have this rank's tokens with all heads. Throws: ConfigError that names the
  /// tensor and the axis for a wrong shape.
  void forward(const Pass& pass, const View<const E>& queries, const View<const E>& keys, const View<const E>& values,
               const View<E>& output, Saved& saved, Processor& processor);

  /// Sets the gradients of this rank's tokens.
  void backward(const Pass& pass, const View<const E>& grad_output, const Saved& saved,
                const typename Memory::Gradients& gradients, Processor& processor);

  /// The present size of the working memory.
  std::uint64_t bytes() const {
    return Memory::bytes_of(grad_output_, grad_queries_, grad_keys_, grad_values_) + exchange_.bytes() + ring_.bytes();
  }

 private:
  /// The number of tokens that a rank of the ring has after Ulysses' exchange.
  std::int64_t tokens_of(const SequenceParts& parts, int ring_rank) const {
    std::int64_t tokens = 0;
    for (const std::int64_t length : group_lengths(parts, ring_rank)) tokens += length;
    return tokens;
  }
  HeadShape gathered(const SequenceParts& parts, std::int64_t batch, std::int64_t width) const {
    return {batch, tokens_of(parts, ring_.rank()), exchange_.heads(), width};
  }
  std::span<const std::int64_t> group_lengths(const SequenceParts& parts, int ring_rank) const {
    const auto size = static_cast<std::size_t>(factors_.ulysses);
    return parts.lengths().subspan(static_cast<std::size_t>(ring_rank) * size, size);
  }
  std::vector<TokenRun> runs_of(const SequenceParts& parts, int ring_rank) const {
    return parts.runs(ring_rank * factors_.ulysses, factors_.ulysses);
  }
  /// The patterns of the ring, made once for all calls with the same parts.
  struct Planned {
    SequenceParts parts;
    std::int64_t width;
    std::vector<std::int64_t> tokens;
    std::vector<typename Memory::Pattern> patterns;
  };
  const Planned& plan(const SequenceParts& parts, std::int64_t width, Processor& processor);
  RingPass<Memory> ring_pass(const Pass& pass, const HeadShape& shape, const Saved& saved, Processor& processor);
  void check(const Pass& pass, std::string_view tensor, const HeadShape& got, const HeadShape& like) const {
    check_rank_shape(pass.parts, factors_, rank_, heads_, tensor, got, like);
  }

  static constexpr const char* kMemoryOf =
      "attention over sequence ranks";  ///< names the memory in the error of a full device

  int rank_;
  SequenceFactors factors_;
  std::int64_t heads_;
  std::vector<std::unique_ptr<comm::Communicator>> owned_;
  HeadExchangeOf<Memory> exchange_;
  AttentionRing<Memory> ring_;
  std::optional<Planned> planned_;
  Buffer<E> grad_output_;
  Buffer<E> grad_queries_;
  Buffer<E> grad_keys_;
  Buffer<E> grad_values_;
};

/// Sequence attention in host memory, on the threads of a team.
template <class T>
using SequenceAttention = SequenceAttentionOf<HostHeads<T>>;
template <class T>
using SavedAttention = SavedAttentionOf<HostHeads<T>>;

template <class Memory>
auto SequenceAttentionOf<Memory>::plan(const SequenceParts& parts, std::int64_t width, Processor& processor)
    -> const Planned& {
  if (planned_ && planned_->parts == parts && planned_->width == width) return *planned_;
  if (planned_) Memory::wait(processor);  // earlier work may use the old patterns
  Planned planned{parts, width, {}, {}};
  for (int part = 0; part < factors_.ring; ++part) {
    planned.tokens.push_back(tokens_of(parts, part));
    planned.patterns.push_back(Memory::made_ready(pattern_of(runs_of(parts, ring_.rank()), runs_of(parts, part)),
                                                  exchange_.heads(), width, processor));
  }
  return planned_.emplace(std::move(planned));
}

template <class Memory>
RingPass<Memory> SequenceAttentionOf<Memory>::ring_pass(const Pass& pass, const HeadShape& shape, const Saved& saved,
                                                        Processor& processor) {
  const Planned& planned = plan(pass.parts, shape.width, processor);
  DropoutMask dropout = pass.dropout;
  dropout.first_head += exchange_.first_head();
  return {Memory::sequence_first(Memory::elems(saved.queries), shape),
          Memory::elems(saved.keys).first(shape.elems()),
          Memory::elems(saved.values).first(shape.elems()),
          saved.absent,
          planned.tokens,
          planned.patterns,
          pass.mask,
          pass.layer,
          dropout};
}

template <class Memory>
void SequenceAttentionOf<Memory>::forward(const Pass& pass, const View<const E>& queries, const View<const E>& keys,
                                          const View<const E>& values, const View<E>& output, Saved& saved,
                                          Processor& processor) {
  check(pass, "queries", queries.shape, queries.shape);
  check(pass, "keys", keys.shape, queries.shape);
  check(pass, "values", values.shape, queries.shape);
  check(pass, "output", output.shape, queries.shape);
  Memory::check_mask(pass.mask, queries.shape.batch, pass.parts.length());
  const HeadShape shape = gathered(pass.parts, queries.shape.batch, queries.shape.width);
  const std::size_t statistics = shape.elems() / static_cast<std::size_t>(shape.width);
  const std::span<const std::int64_t> lengths = group_lengths(pass.parts, ring_.rank());
  const bool stops = exchange_.stops_lost_gradients(sim::TrafficClass::kSequenceForward);
  const bool leaves_out = exchange_.leaves_lost_out(sim::TrafficClass::kSequenceForward);
  saved.elems = shape.elems();
  saved.lost = {};
  saved.absent.assign(leaves_out ? statistics : 0, 0);
  const auto gather = [&](std::string_view name, const View<const E>& local, Buffer<E>& all, LostElements& lost,
                          bool is_left_out) {
    comm::Message message{sim::TrafficClass::kSequenceForward, name, pass.layer};
    if (is_left_out || stops) message.lost = &lost;
    exchange_.to_heads(local, lengths, Memory::room(all, shape.elems(), kMemoryOf, processor), message, processor);
    if (is_left_out) mark_absent(std::exchange(lost, {}), shape.width, saved.absent);
  };
  gather("attention.queries", queries, saved.queries, saved.lost.queries, false);
  gather("attention.keys", keys, saved.keys, saved.lost.keys, leaves_out);
  gather("attention.values", values, saved.values, saved.lost.values, leaves_out);
  const auto out = Memory::room(saved.output, shape.elems(), kMemoryOf, processor);
  ring_.forward(ring_pass(pass, shape, saved, processor), Memory::sequence_first(out, shape),
                Memory::room(saved.log_sum_exp, statistics, kMemoryOf, processor), saved.losses, processor);
  comm::Message of_output{sim::TrafficClass::kSequenceForward, "attention.output", pass.layer};
  if (stops) of_output.lost = &saved.lost.output;
  exchange_.to_tokens(out, lengths, output, of_output, processor);
}

template <class Memory>
void SequenceAttentionOf<Memory>::backward(const Pass& pass, const View<const E>& grad_output, const Saved& saved,
                                           const typename Memory::Gradients& gradients, Processor& processor) {
  const HeadShape& like = grad_output.shape;
  check(pass, "grad_output", like, like);
  check(pass, "gradient of queries", gradients.queries.shape, like);
  check(pass, "gradient of keys", gradients.keys.shape, like);
  check(pass, "gradient of values", gradients.values.shape, like);
  const HeadShape shape = gathered(pass.parts, like.batch, like.width);
  const std::size_t statistics = shape.elems() / static_cast<std::size_t>(shape.width);
  const std::span<const std::int64_t> lengths = group_lengths(pass.parts, ring_.rank());
  const typename Memory::template Span<E> grad = Memory::room(grad_output_, shape.elems(), kMemoryOf, processor);
  exchange_.to_heads(grad_output, lengths, grad,
                     {sim::TrafficClass::kSequenceBackward, "attention.output.grad", pass.layer}, processor,
                     saved.lost.output);
  const auto zeros = [&](Buffer<E>& buffer) {
    const auto elems = Memory::room(buffer, shape.elems(), kMemoryOf, processor);
    Memory::zero(elems, processor);
    return elems;
  };
  const auto queries = zeros(grad_queries_);
  const auto keys = zeros(grad_keys_);
  const auto values = zeros(grad_values_);
  ring_.backward(ring_pass(pass, shape, saved, processor),
                 {Memory::sequence_first(Memory::elems(saved.output), shape),
                  Memory::elems(saved.log_sum_exp).first(statistics), Memory::sequence_first(grad, shape)},
                 saved.losses,
                 {Memory::sequence_first(queries, shape), Memory::sequence_first(keys, shape),
                  Memory::sequence_first(values, shape)},
                 processor);
  Memory::zero_lost(saved.lost.queries, queries, processor);
  Memory::zero_lost(saved.lost.keys, keys, processor);
  Memory::zero_lost(saved.lost.values, values, processor);
  const auto send = [&](std::string_view name, const auto& elems, const View<E>& local) {
    exchange_.to_tokens(elems, lengths, local, {sim::TrafficClass::kSequenceBackward, name, pass.layer}, processor);
  };
  send("attention.queries.grad", queries, gradients.queries);
  send("attention.keys.grad", keys, gradients.keys);
  send("attention.values.grad", values, gradients.values);
}

extern template class SequenceAttentionOf<HostHeads<float>>;
extern template class SequenceAttentionOf<HostHeads<double>>;

}  // namespace droptest::models
