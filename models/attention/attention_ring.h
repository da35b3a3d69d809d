// SPDX-License-Identifier: Apache-2.0
// Ring attention: keys and values travel from rank to rank, and every rank's queries attend to all of them.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/absence.h"
#include "models/attention/lost_elements.h"
#include "models/attention/ring_hop.h"
#include "models/attention/token_attention.h"

namespace droptest::models {

/// The lost elements of the keys and values that a rank received in a forward pass, by hop. The backward pass restores
/// the values of the forward pass at these elements.
template <class Memory>
struct RingLosses {
  struct Hop {
    Absences absent;  ///< flags of the keys that leave the softmax; empty: none leaves
    /// Lost elements of the keys and values that stay in the softmax, with the values that the fill put in their
    /// places.
    typename Memory::Filled keys, values;
    StoppedElements stopped;  ///< empty unless Communicator::stops_lost_gradients()
  };
  std::vector<Hop> hops;
};

/// The arguments of one call. `queries`, `keys`, `values`, `absent` and `patterns` are this rank's; the rest is equal
/// on all ranks. Borrowed.
template <class Memory>
struct RingPass {
  using E = typename Memory::Element;
  typename Memory::template View<const E> queries;
  /// This rank's keys and values. Shape: [tokens, batch, heads, width].
  typename Memory::template Span<const E> keys, values;
  const Absences& absent;                ///< flags of this rank's absent keys, see AttentionInputs::absent
  std::span<const std::int64_t> tokens;  ///< the number of tokens of each rank
  /// For each rank, the pattern of this rank's queries with the keys of that rank.
  std::span<const typename Memory::Pattern> patterns;
  typename Memory::Mask mask;
  int layer = -1;
  DropoutMask dropout{};  ///< dropout of the probabilities, see AttentionInputs::dropout
};

/// Attention over a group of ranks. In the forward pass, keys and values take ranks - 1 hops from rank r to r + 1. In
/// the backward pass they take the same hops again (Delivery::kCertain, with the losses of the forward pass), and their
/// gradients take ranks - 1 hops, too. Flags travel with them in class control: under Communicator::leaves_lost_out()
/// the flags of absent keys; under stops_lost_gradients(), from the second hop on, the flags of the elements that were
/// lost on earlier hops. Memory: HostHeads, DeviceHeads or PlannedHeads. Source: Liu, Zaharia and Abbeel 2023. Owner:
/// one rank. Ranks: all make the same calls. Classes: sequence_forward, sequence_backward.
template <class Memory>
class AttentionRing {
  using E = typename Memory::Element;
  using Processor = typename Memory::Processor;
  template <class U>
  using Span = typename Memory::template Span<U>;
  template <class U>
  using View = typename Memory::template View<U>;

 public:
  /// `group` is borrowed; null: one rank.
  explicit AttentionRing(comm::Communicator* group) : group_(group) {}

  int ranks() const { return group_ == nullptr ? 1 : group_->world_size(); }
  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }

  /// Sets output and log_sum_exp [batch, heads, queries] to the attention over the keys of all ranks, and `losses` to
  /// what backward() needs.
  void forward(const RingPass<Memory>& pass, const View<E>& output, Span<typename Memory::Statistic> log_sum_exp,
               RingLosses<Memory>& losses, Processor& processor);
  /// Adds to the gradients of this rank's queries, keys and values; the latter two have the layout of RingPass.
  void backward(const RingPass<Memory>& pass, const typename Memory::Results& results, const RingLosses<Memory>& losses,
                const typename Memory::Gradients& gradients, Processor& processor);

  /// The present size of the working memory.
  std::uint64_t bytes() const {
    std::uint64_t bytes = Memory::bytes_of(kept_keys_.values, kept_values_.values) + scratch_.bytes();
    for (const Block* block : {&current_, &next_, &gradients_, &next_gradients_}) {
      bytes += Memory::bytes_of(block->keys, block->values);
    }
    return bytes;
  }

 private:
  /// Keys and values of one rank that travel along the ring, or their gradients.
  struct Block {
    typename Memory::template Buffer<E> keys;
    typename Memory::template Buffer<E> values;
  };
  HeadShape shape_of(const RingPass<Memory>& pass, int part) const {
    HeadShape shape = pass.queries.shape;
    shape.tokens = pass.tokens[static_cast<std::size_t>(part)];
    return shape;
  }
  /// The rank with the keys and values that are on this rank after `hops` hops.
  int part_after(int hops) const { return (rank() + ranks() - hops) % ranks(); }
  static const typename Memory::Pattern& pattern(const RingPass<Memory>& pass, int part) {
    return pass.patterns[static_cast<std::size_t>(part)];
  }
  static typename Memory::Inputs inputs_of(const RingPass<Memory>& pass, const HeadShape& shape, Span<const E> keys,
                                           Span<const E> values) {
    return {pass.queries, Memory::sequence_first(keys, shape), Memory::sequence_first(values, shape), pass.mask, {},
            pass.dropout};
  }
  bool leaves_out() const { return group_ != nullptr && group_->leaves_lost_out(sim::TrafficClass::kSequenceForward); }
  bool stops() const {
    return !leaves_out() && group_ != nullptr && group_->stops_lost_gradients(sim::TrafficClass::kSequenceForward);
  }

  static constexpr const char* kMemoryOf =
      "attention over sequence ranks";  ///< names the memory in the error of a full device

  comm::Communicator* group_;
  Block current_;
  Block next_;
  Block gradients_;
  Block next_gradients_;
  /// The gradients at stopped elements, saved and restored around attend_backward(), which must not change them.
  typename Memory::Filled kept_keys_, kept_values_;
  typename Memory::Scratch scratch_;
};

template <class Memory>
void AttentionRing<Memory>::forward(const RingPass<Memory>& pass, const View<E>& output,
                                    Span<typename Memory::Statistic> log_sum_exp, RingLosses<Memory>& losses,
                                    Processor& processor) {
  Memory::begin(output, log_sum_exp, processor);
  Memory::attend(inputs_of(pass, shape_of(pass, rank()), pass.keys, pass.values), pass.absent, pattern(pass, rank()),
                 output, log_sum_exp, scratch_, processor);
  losses.hops.resize(static_cast<std::size_t>(ranks() - 1));
  const bool leaves_out = this->leaves_out();
  const bool stops = this->stops();
  Span<const E> keys = pass.keys;
  Span<const E> values = pass.values;
  Absences absent;
  if (leaves_out) absent = pass.absent;
  if (leaves_out && absent.empty()) {
    absent.assign(pass.keys.size() / static_cast<std::size_t>(pass.queries.shape.width), 0);
  }
  for (int hop = 1; hop < ranks(); ++hop) {
    const HeadShape shape = shape_of(pass, part_after(hop));
    const Span<E> next_keys = Memory::room(next_.keys, shape.elems(), kMemoryOf, processor);
    const Span<E> next_values = Memory::room(next_.values, shape.elems(), kMemoryOf, processor);
    typename RingLosses<Memory>::Hop& lost = losses.hops[static_cast<std::size_t>(hop - 1)];
    lost.absent.clear();
    lost.keys.lost.clear();
    lost.values.lost.clear();
    lost.stopped = {};
    RingHop exchange(*group_, pass.layer, hop);
    comm::Message message{sim::TrafficClass::kSequenceForward, {}};
    message.lost = &lost.keys.lost;
    exchange.add("keys", message, Memory::tensor(keys, processor), Memory::tensor(next_keys, processor));
    message.lost = &lost.values.lost;
    exchange.add("values", message, Memory::tensor(values, processor), Memory::tensor(next_values, processor));
    const bool sends_stopped = stops && hop > 1;  // a rank's own keys and values are not stopped
    FlagWords sent_flags;
    FlagWords flags;
    if (leaves_out) {
      sent_flags = packed_flags(absent);
      flags.resize((shape.elems() / static_cast<std::size_t>(shape.width) + 63) / 64);
      Memory::add_flags(exchange, "absent", sent_flags, flags, scratch_, processor);
    } else if (sends_stopped) {
      sent_flags = packed_flags(losses.hops[static_cast<std::size_t>(hop - 2)].stopped, keys.size());
      flags.resize(stopped_words(shape.elems()));
      Memory::add_flags(exchange, "lost", sent_flags, flags, scratch_, processor);
    }
    exchange.run();
    if (leaves_out || sends_stopped) Memory::take_flags(flags, scratch_, processor);
    std::swap(current_, next_);
    keys = next_keys;
    values = next_values;
    if (leaves_out) {
      absent.assign(shape.elems() / static_cast<std::size_t>(shape.width), 0);
      unpack_flags(flags, absent);
      mark_absent(lost.keys.lost, shape.width, absent);
      mark_absent(lost.values.lost, shape.width, absent);
      lost.absent = absent;
      lost.keys.lost.clear();  // absent keys need no values of a fill
      lost.values.lost.clear();
    } else {
      Memory::save(keys, lost.keys, processor);
      Memory::save(values, lost.values, processor);
    }
    if (stops) {
      lost.stopped = {lost.keys.lost, lost.values.lost};
      if (sends_stopped) add_stopped(flags, lost.stopped);
    }
    Memory::attend(inputs_of(pass, shape, keys, values), lost.absent, pattern(pass, part_after(hop)), output,
                   log_sum_exp, scratch_, processor);
  }
}

template <class Memory>
void AttentionRing<Memory>::backward(const RingPass<Memory>& pass, const typename Memory::Results& results,
                                     const RingLosses<Memory>& losses, const typename Memory::Gradients& gradients,
                                     Processor& processor) {
  Memory::attend_backward(inputs_of(pass, shape_of(pass, rank()), pass.keys, pass.values), pass.absent,
                          pattern(pass, rank()), results, gradients, scratch_, processor);
  if (ranks() == 1) return;
  Span<const E> keys = pass.keys;
  Span<const E> values = pass.values;
  comm::Message repeated{sim::TrafficClass::kSequenceBackward, {}};
  repeated.delivery = comm::Delivery::kCertain;
  const comm::Message of_gradients{sim::TrafficClass::kSequenceBackward, {}};
  // The gradients of the keys and values that are on this rank at the current hop.
  Span<E> key_gradients;
  Span<E> value_gradients;
  const auto add_gradients = [&](RingHop& exchange, const HeadShape& received) {
    exchange.add("keys.grad", of_gradients, Memory::tensor(Span<const E>(key_gradients), processor),
                 Memory::tensor(Memory::room(next_gradients_.keys, received.elems(), kMemoryOf, processor), processor));
    exchange.add(
        "values.grad", of_gradients, Memory::tensor(Span<const E>(value_gradients), processor),
        Memory::tensor(Memory::room(next_gradients_.values, received.elems(), kMemoryOf, processor), processor));
  };
  for (int hop = 1; hop < ranks(); ++hop) {
    const int part = part_after(hop);
    const HeadShape shape = shape_of(pass, part);
    const typename RingLosses<Memory>::Hop& lost = losses.hops[static_cast<std::size_t>(hop - 1)];
    const Span<E> next_keys = Memory::room(next_.keys, shape.elems(), kMemoryOf, processor);
    const Span<E> next_values = Memory::room(next_.values, shape.elems(), kMemoryOf, processor);
    RingHop exchange(*group_, pass.layer, hop);
    exchange.add("keys", repeated, Memory::tensor(keys, processor), Memory::tensor(next_keys, processor));
    exchange.add("values", repeated, Memory::tensor(values, processor), Memory::tensor(next_values, processor));
    if (hop > 1) add_gradients(exchange, shape);
    exchange.run();
    std::swap(current_, next_);
    std::swap(gradients_, next_gradients_);
    key_gradients = Memory::room(gradients_.keys, shape.elems(), kMemoryOf, processor);
    value_gradients = Memory::room(gradients_.values, shape.elems(), kMemoryOf, processor);
    if (hop == 1) {
      Memory::zero(key_gradients, processor);
      Memory::zero(value_gradients, processor);
    }
    Memory::restore(lost.keys, next_keys, processor);
    Memory::restore(lost.values, next_values, processor);
    keys = next_keys;
    values = next_values;
    kept_keys_.lost = lost.stopped.keys;
    kept_values_.lost = lost.stopped.values;
    Memory::save(key_gradients, kept_keys_, processor);
    Memory::save(value_gradients, kept_values_, processor);
    Memory::attend_backward(inputs_of(pass, shape, keys, values), lost.absent, pattern(pass, part), results,
                            {gradients.queries, Memory::sequence_first(key_gradients, shape),
                             Memory::sequence_first(value_gradients, shape)},
                            scratch_, processor);
    Memory::restore(kept_keys_, key_gradients, processor);
    Memory::restore(kept_values_, value_gradients, processor);
  }
  // The gradients of the part of the next rank are complete.
  const HeadShape shape = shape_of(pass, rank());
  RingHop exchange(*group_, pass.layer, ranks());
  add_gradients(exchange, shape);
  exchange.run();
  const auto add = [&](typename Memory::template Buffer<E>& from, const View<E>& to) {
    Memory::add(Memory::sequence_first(Span<const E>(Memory::elems(from)), shape), to, processor);
  };
  add(next_gradients_.keys, gradients.keys);
  add(next_gradients_.values, gradients.values);
}

}  // namespace droptest::models
