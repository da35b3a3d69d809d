// SPDX-License-Identifier: Apache-2.0
#include "models/sequence/attention_ring.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "models/kernels/chunks.h"
#include "models/sequence/ring_hop.h"

namespace droptest::models {
template <class T>
HeadShape AttentionRing<T>::shape_of(const RingPass<T>& pass, int part) const {
  HeadShape shape = pass.queries.shape;
  shape.tokens = 0;
  for (const TokenRun& run : pass.parts[static_cast<std::size_t>(part)]) shape.tokens += run.count;
  return shape;
}

template <class T>
AttentionInputs<T> AttentionRing<T>::inputs_of(const RingPass<T>& pass, int part, std::span<const T> keys,
                                               std::span<const T> values, std::span<const std::uint8_t> absent) const {
  const HeadShape shape = shape_of(pass, part);
  return {pass.queries,
          view_of("keys", keys, shape, TokenLayout::kSequenceFirst),
          view_of("values", values, shape, TokenLayout::kSequenceFirst),
          pass.mask,
          absent,
          pass.dropout};
}

template <class T>
AttentionPattern AttentionRing<T>::pattern(const RingPass<T>& pass, int part) const {
  return pattern_of(pass.parts[static_cast<std::size_t>(rank())], pass.parts[static_cast<std::size_t>(part)]);
}

template <class T>
std::span<T> AttentionRing<T>::scratch(std::int64_t width, const Team& team) {
  scratch_.resize(token_attention_scratch_elems(width, team.threads()));
  return scratch_;
}

template <class T>
void AttentionRing<T>::forward(const RingPass<T>& pass, const HeadView<T>& output, std::span<T> log_sum_exp,
                               RingLosses<T>& losses, const Team& team) {
  const SingleThreadedLibraries single_threaded;
  const std::span<T> room = scratch(pass.queries.shape.width, team);
  begin_attention(output, log_sum_exp);
  attend(inputs_of(pass, rank(), pass.keys, pass.values, pass.absent), pattern(pass, rank()), output, log_sum_exp, room,
         team);
  losses.hops.assign(static_cast<std::size_t>(ranks() - 1), {});
  const bool leaves_out = group_ != nullptr && group_->leaves_lost_out(sim::TrafficClass::kSequenceForward);
  const bool stops =
      !leaves_out && group_ != nullptr && group_->stops_lost_gradients(sim::TrafficClass::kSequenceForward);
  std::span<const T> keys = pass.keys;
  std::span<const T> values = pass.values;
  Absences absent(pass.absent.begin(), pass.absent.end());
  if (absent.empty()) absent.assign(pass.keys.size() / static_cast<std::size_t>(pass.queries.shape.width), 0);
  for (int hop = 1; hop < ranks(); ++hop) {
    const HeadShape shape = shape_of(pass, part_after(hop));
    next_.keys.resize(shape.elems());
    next_.values.resize(shape.elems());
    typename RingLosses<T>::Hop& lost = losses.hops[static_cast<std::size_t>(hop - 1)];
    RingHop exchange(*group_, pass.layer, hop);
    comm::Message message{sim::TrafficClass::kSequenceForward, {}};
    message.lost = &lost.keys.lost;
    exchange.add("keys", message, keys, std::span(next_.keys));
    message.lost = &lost.values.lost;
    exchange.add("values", message, values, std::span(next_.values));
    Absences next_absent(shape.elems() / static_cast<std::size_t>(std::max<std::int64_t>(1, shape.width)));
    const FlagWords sent_flags = packed_flags(absent);
    FlagWords flags((next_absent.size() + 63) / 64);
    comm::Message reliable{sim::TrafficClass::kControl, {}};
    reliable.delivery = comm::Delivery::kCertain;
    if (leaves_out) {
      exchange.add("absent", reliable, std::span<const std::uint64_t>(sent_flags), std::span(flags));
    }
    FlagWords sent_stopped;
    FlagWords stopped;
    if (stops && hop > 1) {  // a rank's own keys and values are not stopped
      sent_stopped = packed_flags(losses.hops[static_cast<std::size_t>(hop - 2)].stopped, keys.size());
      stopped.resize(stopped_words(shape.elems()));
      exchange.add("lost", reliable, std::span<const std::uint64_t>(sent_stopped), std::span(stopped));
    }
    exchange.run();
    std::swap(current_, next_);
    keys = current_.keys;
    values = current_.values;
    if (leaves_out) {
      unpack_flags(flags, next_absent);
      mark_absent(lost.keys.lost, shape.width, next_absent);
      mark_absent(lost.values.lost, shape.width, next_absent);
      lost = {next_absent, {}, {}, {}};
    } else {
      save_values(keys, lost.keys);
      save_values(values, lost.values);
    }
    if (stops) {
      lost.stopped = {lost.keys.lost, lost.values.lost};
      if (hop > 1) add_stopped(stopped, lost.stopped);
    }
    absent = std::move(next_absent);
    attend(inputs_of(pass, part_after(hop), keys, values, lost.absent), pattern(pass, part_after(hop)), output,
           log_sum_exp, room, team);
  }
}

template <class T>
void AttentionRing<T>::backward(const RingPass<T>& pass, const AttentionResults<T>& results,
                                const RingLosses<T>& losses, const AttentionGradients<T>& gradients, const Team& team) {
  const SingleThreadedLibraries single_threaded;
  const std::span<T> room = scratch(pass.queries.shape.width, team);
  attend_backward(inputs_of(pass, rank(), pass.keys, pass.values, pass.absent), pattern(pass, rank()), results,
                  gradients, room, team);
  if (ranks() == 1) return;
  std::span<const T> keys = pass.keys;
  std::span<const T> values = pass.values;
  comm::Message repeated{sim::TrafficClass::kSequenceBackward, {}};
  repeated.delivery = comm::Delivery::kCertain;
  const comm::Message of_gradients{sim::TrafficClass::kSequenceBackward, {}};
  const auto resize = [](Block& block, std::uint64_t elems) {
    block.keys.assign(elems, T(0));
    block.values.assign(elems, T(0));
  };
  const auto add_gradients = [&](RingHop& exchange) {
    exchange.add("keys.grad", of_gradients, std::span<const T>(gradients_.keys), std::span(next_gradients_.keys));
    exchange.add("values.grad", of_gradients, std::span<const T>(gradients_.values), std::span(next_gradients_.values));
  };
  for (int hop = 1; hop < ranks(); ++hop) {
    const int part = part_after(hop);
    const HeadShape shape = shape_of(pass, part);
    const typename RingLosses<T>::Hop& lost = losses.hops[static_cast<std::size_t>(hop - 1)];
    next_.keys.resize(shape.elems());
    next_.values.resize(shape.elems());
    resize(next_gradients_, shape.elems());
    RingHop exchange(*group_, pass.layer, hop);
    exchange.add("keys", repeated, keys, std::span(next_.keys));
    exchange.add("values", repeated, values, std::span(next_.values));
    if (hop > 1) add_gradients(exchange);
    exchange.run();
    std::swap(current_, next_);
    std::swap(gradients_, next_gradients_);
    restore_values<T>(lost.keys, current_.keys);
    restore_values<T>(lost.values, current_.values);
    keys = current_.keys;
    values = current_.values;
    const AttentionGradients<T> added{
        gradients.queries, view_of("keys", std::span(gradients_.keys), shape, TokenLayout::kSequenceFirst),
        view_of("values", std::span(gradients_.values), shape, TokenLayout::kSequenceFirst)};
    FilledElements<T> without_own_keys{lost.stopped.keys, {}};
    FilledElements<T> without_own_values{lost.stopped.values, {}};
    save_values<T>(gradients_.keys, without_own_keys);
    save_values<T>(gradients_.values, without_own_values);
    attend_backward(inputs_of(pass, part, keys, values, lost.absent), pattern(pass, part), results, added, room, team);
    restore_values<T>(without_own_keys, gradients_.keys);
    restore_values<T>(without_own_values, gradients_.values);
  }
  // The gradients of the part of the next rank are complete.
  const HeadShape shape = shape_of(pass, rank());
  resize(next_gradients_, shape.elems());
  RingHop exchange(*group_, pass.layer, ranks());
  add_gradients(exchange);
  exchange.run();
  const auto view = [&](const std::vector<T>& elems) {
    return view_of("gradients", std::span<const T>(elems), shape, TokenLayout::kSequenceFirst);
  };
  add_heads(view(next_gradients_.keys), gradients.keys);
  add_heads(view(next_gradients_.values), gradients.values);
}

template class AttentionRing<float>;
template class AttentionRing<double>;

}  // namespace droptest::models
