// SPDX-License-Identifier: Apache-2.0
#include "models/sequence/device_sequence_attention.h"

#include <algorithm>
#include <utility>

#include "comm/bfloat16.h"
#include "comm/device/device_tensor.h"
#include "comm/device/tensor_operations.h"
#include "comm/float16.h"
#include "models/sequence/device_heads.h"
#include "models/sequence/ring_hop.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

template <class E>
DeviceHeadView<E> heads_of(const DeviceHeadView<E>& view, std::int64_t first, std::int64_t count) {
  const auto skipped =
      std::min(view.elems.size(), static_cast<std::size_t>(std::max<std::int64_t>(0, first * view.head_stride)));
  return {view.elems.subspan(skipped, view.elems.size() - skipped),
          {view.shape.batch, view.shape.tokens, count, view.shape.width},
          view.batch_stride,
          view.token_stride,
          view.head_stride};
}

template <class... Buffers>
std::uint64_t bytes_of(const Buffers&... buffers) {
  return (std::uint64_t{0} + ... + buffers.bytes());
}

}  // namespace

template <class E>
std::uint64_t DeviceSavedAttention<E>::bytes() const {
  std::uint64_t bytes = bytes_of(queries, keys, values, output, log_sum_exp);
  for (const Hop& hop : hops) bytes += bytes_of(hop.keys.values, hop.values.values);
  return bytes;
}

template <class E>
std::uint64_t DeviceSequenceAttention<E>::bytes() const {
  std::uint64_t bytes = bytes_of(packed_, grad_output_, grad_queries_, delta_, absent_, flags_, next_flags_);
  bytes += bytes_of(kept_keys_.values, kept_values_.values);
  for (const Block* block : {&grad_own_, &current_, &next_, &gradients_, &next_gradients_}) {
    bytes += bytes_of(block->keys, block->values);
  }
  return bytes;
}

template <class E>
DeviceSequenceAttention<E>::DeviceSequenceAttention(comm::Communicator& group, const SequenceFactors& factors,
                                                    std::int64_t heads, comm::Stream& stream)
    : stream_(stream),
      rank_(checked_rank(&group, factors)),
      factors_(factors),
      heads_(heads),
      ulysses_(part_of_group(&group, factors.ulysses, rank_ / factors.ulysses, owned_)),
      ring_(part_of_group(&group, factors.ring, rank_ % factors.ulysses, owned_)),
      heads_of_(dealt_heads(heads, factors.ulysses)) {}

template <class E>
auto DeviceSequenceAttention<E>::plan(const SequenceParts& parts, std::int64_t width) -> const Planned& {
  if (planned_ && planned_->parts == parts && planned_->width == width) return *planned_;
  if (planned_) stream_.synchronize();  // earlier work may use the old patterns
  Planned planned{parts, width, {}, {}};
  for (int part = 0; part < factors_.ring; ++part) {
    planned.runs.push_back(parts.runs(part * factors_.ulysses, factors_.ulysses));
  }
  const std::int64_t own_heads =
      static_cast<std::int64_t>(heads_of_[static_cast<std::size_t>(rank_ % factors_.ulysses)]);
  for (const std::vector<TokenRun>& keys : planned.runs) {
    planned.patterns.emplace_back(pattern_of(planned.runs[static_cast<std::size_t>(ring_rank())], keys), own_heads,
                                  width, stream_);
  }
  return planned_.emplace(std::move(planned));
}

template <class E>
HeadShape DeviceSequenceAttention<E>::shape_of(const Planned& planned, int part, const HeadShape& like) const {
  HeadShape shape{like.batch, 0,
                  static_cast<std::int64_t>(heads_of_[static_cast<std::size_t>(rank_ % factors_.ulysses)]), like.width};
  for (const TokenRun& run : planned.runs[static_cast<std::size_t>(part)]) shape.tokens += run.count;
  return shape;
}

template <class E>
std::vector<std::uint64_t> DeviceSequenceAttention<E>::by_heads(const HeadShape& local) const {
  std::vector<std::uint64_t> counts;
  for (const std::uint64_t heads : heads_of_) {
    counts.push_back(HeadShape{local.batch, local.tokens, static_cast<std::int64_t>(heads), local.width}.elems());
  }
  return counts;
}

template <class E>
std::vector<std::uint64_t> DeviceSequenceAttention<E>::by_tokens(const SequenceParts& parts,
                                                                 const HeadShape& local) const {
  const auto own = static_cast<std::int64_t>(heads_of_[static_cast<std::size_t>(rank_ % factors_.ulysses)]);
  std::vector<std::uint64_t> counts;
  const int first = ring_rank() * factors_.ulysses;
  for (int rank = first; rank < first + factors_.ulysses; ++rank) {
    counts.push_back(HeadShape{local.batch, parts.length_of(rank), own, local.width}.elems());
  }
  return counts;
}

template <class E>
void DeviceSequenceAttention<E>::to_heads(const DeviceSequencePass& pass, const DeviceHeadView<const E>& local,
                                          comm::DeviceSpan<E> gathered, const comm::Message& message,
                                          const LostElements& stopped) {
  if (ulysses_ == nullptr) return copy_heads<E>(local, sequence_first(gathered, local.shape), stream_);
  const comm::DeviceSpan<E> packed = grown(packed_, local.shape.elems());
  const std::vector<std::uint64_t> sent = by_heads(local.shape);
  std::size_t at = 0;
  std::int64_t first = 0;
  for (std::size_t r = 0; r < heads_of_.size(); ++r) {
    const DeviceHeadView<const E> part = heads_of(local, first, static_cast<std::int64_t>(heads_of_[r]));
    copy_heads<E>(part, sequence_first(packed.subspan(at, sent[r]), part.shape), stream_);
    first += part.shape.heads;
    at += sent[r];
  }
  zero_lost(stopped, packed);
  ulysses_->all_to_all(comm::device_tensor(packed, stream_), sent, comm::device_tensor(gathered, stream_),
                       by_tokens(pass.parts, local.shape), message);
}

template <class E>
void DeviceSequenceAttention<E>::to_tokens(const DeviceSequencePass& pass, comm::DeviceSpan<const E> gathered,
                                           const DeviceHeadView<E>& local, const comm::Message& message) {
  if (ulysses_ == nullptr) return copy_heads<E>(sequence_first(gathered, local.shape), local, stream_);
  const comm::DeviceSpan<E> packed = grown(packed_, local.shape.elems());
  const std::vector<std::uint64_t> received = by_heads(local.shape);
  ulysses_->all_to_all(comm::device_tensor(gathered, stream_), by_tokens(pass.parts, local.shape),
                       comm::device_tensor(packed, stream_), received, message);
  std::size_t at = 0;
  std::int64_t first = 0;
  for (std::size_t r = 0; r < heads_of_.size(); ++r) {
    const DeviceHeadView<E> part = heads_of(local, first, static_cast<std::int64_t>(heads_of_[r]));
    copy_heads<E>(sequence_first(comm::DeviceSpan<const E>(packed.subspan(at, received[r])), part.shape), part,
                  stream_);
    first += part.shape.heads;
    at += received[r];
  }
}

template <class E>
DeviceAttentionInputs<E> DeviceSequenceAttention<E>::inputs_of(const DeviceSequencePass& pass,
                                                               const DeviceSavedAttention<E>& saved,
                                                               const HeadShape& queries, comm::DeviceSpan<const E> keys,
                                                               comm::DeviceSpan<const E> values,
                                                               const HeadShape& of_keys, const Absences& absent) {
  DeviceAttentionInputs<E> inputs{sequence_first(saved.queries.elems(), queries),
                                  sequence_first(keys, of_keys),
                                  sequence_first(values, of_keys),
                                  {Causality::kCausal, pass.parts.length(), pass.documents},
                                  {},
                                  pass.dropout};
  for (int r = 0; r < rank_ % factors_.ulysses; ++r) {
    inputs.dropout.first_head += static_cast<std::int64_t>(heads_of_[static_cast<std::size_t>(r)]);
  }
  if (absent.empty()) return inputs;
  const comm::DeviceSpan<std::uint8_t> flags = grown(absent_, absent.size());
  comm::copy_to_device(std::span<const std::uint8_t>(absent), flags, stream_);
  inputs.absent = flags;
  return inputs;
}

template <class E>
void DeviceSequenceAttention<E>::save_fill(comm::DeviceSpan<const E> received,
                                           typename DeviceSavedAttention<E>::Filled& filled) {
  std::size_t count = 0;
  for (const sim::ElementRange& range : filled.lost) count += range.size();
  const comm::DeviceSpan<E> to = grown(filled.values, count);
  std::size_t at = 0;
  for (const sim::ElementRange& range : filled.lost) {
    comm::copy_on_device(received.subspan(range.begin, range.size()), to.subspan(at, range.size()), stream_);
    at += range.size();
  }
}

template <class E>
void DeviceSequenceAttention<E>::fill_again(const typename DeviceSavedAttention<E>::Filled& filled,
                                            comm::DeviceSpan<E> received) {
  const comm::DeviceSpan<const E> from = filled.values.elems();
  std::size_t at = 0;
  for (const sim::ElementRange& range : filled.lost) {
    comm::copy_on_device(from.subspan(at, range.size()), received.subspan(range.begin, range.size()), stream_);
    at += range.size();
  }
}

template <class E>
void DeviceSequenceAttention<E>::zero_lost(const LostElements& lost, comm::DeviceSpan<E> elems) {
  comm::zero_ranges_on_device(comm::device_tensor(elems, stream_), lost);
}

template <class E>
void DeviceSequenceAttention<E>::exchange_flags(std::string_view name, const FlagWords& sent, FlagWords& received,
                                                int layer, int hop) {
  const comm::DeviceSpan<std::uint64_t> leaving = grown(flags_, sent.size());
  const comm::DeviceSpan<std::uint64_t> arriving = grown(next_flags_, received.size());
  comm::copy_to_device(std::span<const std::uint64_t>(sent), leaving, stream_);
  comm::Message reliable{sim::TrafficClass::kControl, {}};
  reliable.delivery = comm::Delivery::kCertain;
  RingHop exchange(*ring_, layer, hop);
  exchange.add(name, reliable, comm::device_tensor(leaving, stream_), comm::device_tensor(arriving, stream_));
  exchange.run();
  comm::copy_to_host(reinterpret_cast<const std::byte*>(arriving.data()), std::as_writable_bytes(std::span(received)),
                     stream_);
  stream_.synchronize();
}

template <class E>
void DeviceSequenceAttention<E>::forward(const DeviceSequencePass& pass, const DeviceHeadView<const E>& queries,
                                         const DeviceHeadView<const E>& keys, const DeviceHeadView<const E>& values,
                                         const DeviceHeadView<E>& output, DeviceSavedAttention<E>& saved) {
  check(pass, "queries", queries.shape, queries.shape);
  check(pass, "keys", keys.shape, queries.shape);
  check(pass, "values", values.shape, queries.shape);
  check(pass, "output", output.shape, queries.shape);
  const Planned& planned = plan(pass.parts, queries.shape.width);
  const HeadShape shape = shape_of(planned, ring_rank(), queries.shape);
  const std::size_t statistics = shape.elems() / static_cast<std::size_t>(shape.width);
  saved.lost = {};
  const auto stops_in = [](const comm::Communicator* group) {
    return group != nullptr && group->stops_lost_gradients(sim::TrafficClass::kSequenceForward);
  };
  const bool ulysses_stops = stops_in(ulysses_);
  const bool ulysses_leaves_out = ulysses_ != nullptr && ulysses_->leaves_lost_out(sim::TrafficClass::kSequenceForward);
  saved.absent.assign(ulysses_leaves_out ? statistics : 0, 0);
  const auto gather = [&](std::string_view name, const DeviceHeadView<const E>& local, comm::DeviceBuffer<E>& all,
                          LostElements& lost, bool leaves_out) {
    comm::Message message{sim::TrafficClass::kSequenceForward, name, pass.layer};
    if (leaves_out || ulysses_stops) message.lost = &lost;
    to_heads(pass, local, grown(all, shape.elems()), message);
    if (leaves_out) mark_absent(std::exchange(lost, {}), shape.width, saved.absent);
  };
  gather("attention.queries", queries, saved.queries, saved.lost.queries, false);
  gather("attention.keys", keys, saved.keys, saved.lost.keys, ulysses_leaves_out);
  gather("attention.values", values, saved.values, saved.lost.values, ulysses_leaves_out);
  const DeviceHeadView<E> out = sequence_first(grown(saved.output, shape.elems()), shape);
  const comm::DeviceSpan<float> log_sum_exp = grown(saved.log_sum_exp, statistics);
  begin_attention(out, log_sum_exp, stream_);
  comm::DeviceSpan<const E> here_keys = saved.keys.elems().first(shape.elems());
  comm::DeviceSpan<const E> here_values = saved.values.elems().first(shape.elems());
  attend(inputs_of(pass, saved, shape, here_keys, here_values, shape, saved.absent),
         planned.patterns[static_cast<std::size_t>(ring_rank())], out, log_sum_exp, stream_);
  saved.hops.clear();
  saved.hops.resize(static_cast<std::size_t>(factors_.ring - 1));
  const bool leaves_out = ring_ != nullptr && ring_->leaves_lost_out(sim::TrafficClass::kSequenceForward);
  const bool stops = !leaves_out && stops_in(ring_);
  Absences absent = saved.absent;
  if (absent.empty()) absent.assign(statistics, 0);
  for (int hop = 1; hop < factors_.ring; ++hop) {
    const int part = part_after(hop);
    const HeadShape of_part = shape_of(planned, part, queries.shape);
    const comm::DeviceSpan<E> next_keys = grown(next_.keys, of_part.elems());
    const comm::DeviceSpan<E> next_values = grown(next_.values, of_part.elems());
    auto& lost_here = saved.hops[static_cast<std::size_t>(hop - 1)];
    RingHop exchange(*ring_, pass.layer, hop);
    comm::Message message{sim::TrafficClass::kSequenceForward, {}};
    message.lost = &lost_here.keys.lost;
    exchange.add("keys", message, comm::device_tensor(here_keys, stream_), comm::device_tensor(next_keys, stream_));
    message.lost = &lost_here.values.lost;
    exchange.add("values", message, comm::device_tensor(here_values, stream_),
                 comm::device_tensor(next_values, stream_));
    exchange.run();
    Absences next_absent(of_part.elems() / static_cast<std::size_t>(of_part.width));
    if (leaves_out) {
      FlagWords flags((next_absent.size() + 63) / 64);
      exchange_flags("absent", packed_flags(absent), flags, pass.layer, hop);
      unpack_flags(flags, next_absent);
      mark_absent(lost_here.keys.lost, of_part.width, next_absent);
      mark_absent(lost_here.values.lost, of_part.width, next_absent);
      lost_here = {next_absent, {}, {}, {}};
    } else {
      save_fill(next_keys, lost_here.keys);
      save_fill(next_values, lost_here.values);
    }
    if (stops) {
      lost_here.stopped = {lost_here.keys.lost, lost_here.values.lost};
      if (hop > 1) {  // a rank's own keys and values are not stopped
        const StoppedElements& sent = saved.hops[static_cast<std::size_t>(hop - 2)].stopped;
        FlagWords flags(stopped_words(of_part.elems()));
        exchange_flags("lost", packed_flags(sent, here_keys.size()), flags, pass.layer, hop);
        add_stopped(flags, lost_here.stopped);
      }
    }
    absent = std::move(next_absent);
    std::swap(current_, next_);
    here_keys = next_keys;
    here_values = next_values;
    attend(inputs_of(pass, saved, shape, here_keys, here_values, of_part, lost_here.absent),
           planned.patterns[static_cast<std::size_t>(part)], out, log_sum_exp, stream_);
  }
  comm::Message of_output{sim::TrafficClass::kSequenceForward, "attention.output", pass.layer};
  if (ulysses_stops) of_output.lost = &saved.lost.output;
  to_tokens(pass, saved.output.elems().first(shape.elems()), output, of_output);
}

template <class E>
void DeviceSequenceAttention<E>::backward(const DeviceSequencePass& pass, const DeviceHeadView<const E>& grad_output,
                                          const DeviceSavedAttention<E>& saved,
                                          const DeviceAttentionGradients<E>& gradients) {
  check(pass, "grad_output", grad_output.shape, grad_output.shape);
  check(pass, "gradient of queries", gradients.queries.shape, grad_output.shape);
  check(pass, "gradient of keys", gradients.keys.shape, grad_output.shape);
  check(pass, "gradient of values", gradients.values.shape, grad_output.shape);
  const Planned& planned = plan(pass.parts, grad_output.shape.width);
  const HeadShape shape = shape_of(planned, ring_rank(), grad_output.shape);
  const std::size_t statistics = shape.elems() / static_cast<std::size_t>(shape.width);
  const comm::DeviceSpan<E> grad = grown(grad_output_, shape.elems());
  to_heads(pass, grad_output, grad, {sim::TrafficClass::kSequenceBackward, "attention.output.grad", pass.layer},
           saved.lost.output);
  const auto zeros = [&](comm::DeviceBuffer<E>& buffer, const HeadShape& of) {
    const comm::DeviceSpan<E> elems = grown(buffer, of.elems());
    comm::zero_on_device(elems, stream_);
    return elems;
  };
  const comm::DeviceSpan<E> grad_queries = zeros(grad_queries_, shape);
  const comm::DeviceSpan<E> grad_keys = zeros(grad_own_.keys, shape);
  const comm::DeviceSpan<E> grad_values = zeros(grad_own_.values, shape);
  const comm::DeviceSpan<float> delta = grown(delta_, statistics);
  const DeviceAttentionResults<E> results{sequence_first(saved.output.elems(), shape),
                                          saved.log_sum_exp.elems().first(statistics),
                                          sequence_first(comm::DeviceSpan<const E>(grad), shape)};
  comm::DeviceSpan<const E> here_keys = saved.keys.elems().first(shape.elems());
  comm::DeviceSpan<const E> here_values = saved.values.elems().first(shape.elems());
  attend_backward(inputs_of(pass, saved, shape, here_keys, here_values, shape, saved.absent),
                  planned.patterns[static_cast<std::size_t>(ring_rank())], results,
                  DeviceAttentionGradients<E>{sequence_first(grad_queries, shape), sequence_first(grad_keys, shape),
                                              sequence_first(grad_values, shape)},
                  delta, stream_);
  comm::Message repeated{sim::TrafficClass::kSequenceBackward, {}};
  repeated.delivery = comm::Delivery::kCertain;
  const comm::Message of_gradients{sim::TrafficClass::kSequenceBackward, {}};
  // The gradients with respect to the keys and values that are here.
  comm::DeviceSpan<E> key_gradients;
  comm::DeviceSpan<E> value_gradients;
  const auto add_gradients = [&](RingHop& exchange, const HeadShape& received) {
    exchange.add("keys.grad", of_gradients, comm::device_tensor(comm::DeviceSpan<const E>(key_gradients), stream_),
                 comm::device_tensor(grown(next_gradients_.keys, received.elems()), stream_));
    exchange.add("values.grad", of_gradients, comm::device_tensor(comm::DeviceSpan<const E>(value_gradients), stream_),
                 comm::device_tensor(grown(next_gradients_.values, received.elems()), stream_));
  };
  for (int hop = 1; hop < factors_.ring; ++hop) {
    const int part = part_after(hop);
    const HeadShape of_part = shape_of(planned, part, grad_output.shape);
    const auto& lost = saved.hops[static_cast<std::size_t>(hop - 1)];
    const comm::DeviceSpan<E> next_keys = grown(next_.keys, of_part.elems());
    const comm::DeviceSpan<E> next_values = grown(next_.values, of_part.elems());
    RingHop exchange(*ring_, pass.layer, hop);
    exchange.add("keys", repeated, comm::device_tensor(here_keys, stream_), comm::device_tensor(next_keys, stream_));
    exchange.add("values", repeated, comm::device_tensor(here_values, stream_),
                 comm::device_tensor(next_values, stream_));
    if (hop > 1) add_gradients(exchange, of_part);
    exchange.run();
    std::swap(current_, next_);
    std::swap(gradients_, next_gradients_);
    key_gradients = hop > 1 ? gradients_.keys.elems().first(of_part.elems()) : zeros(gradients_.keys, of_part);
    value_gradients = hop > 1 ? gradients_.values.elems().first(of_part.elems()) : zeros(gradients_.values, of_part);
    fill_again(lost.keys, next_keys);
    fill_again(lost.values, next_values);
    here_keys = next_keys;
    here_values = next_values;
    kept_keys_.lost = lost.stopped.keys;
    kept_values_.lost = lost.stopped.values;
    save_fill(key_gradients, kept_keys_);
    save_fill(value_gradients, kept_values_);
    attend_backward(
        inputs_of(pass, saved, shape, here_keys, here_values, of_part, lost.absent),
        planned.patterns[static_cast<std::size_t>(part)], results,
        DeviceAttentionGradients<E>{sequence_first(grad_queries, shape), sequence_first(key_gradients, of_part),
                                    sequence_first(value_gradients, of_part)},
        delta, stream_);
    fill_again(kept_keys_, key_gradients);
    fill_again(kept_values_, value_gradients);
  }
  if (factors_.ring > 1) {
    // The gradients of the part of the next rank are complete.
    RingHop exchange(*ring_, pass.layer, factors_.ring);
    add_gradients(exchange, shape);
    exchange.run();
    const auto add = [&](const comm::DeviceBuffer<E>& from, comm::DeviceSpan<E> to) {
      add_heads<E>(sequence_first(from.elems(), shape), sequence_first(to, shape), stream_);
    };
    add(next_gradients_.keys, grad_keys);
    add(next_gradients_.values, grad_values);
  }
  zero_lost(saved.lost.queries, grad_queries);
  zero_lost(saved.lost.keys, grad_keys);
  zero_lost(saved.lost.values, grad_values);
  to_tokens(pass, grad_queries, gradients.queries,
            {sim::TrafficClass::kSequenceBackward, "attention.queries.grad", pass.layer});
  to_tokens(pass, grad_keys, gradients.keys, {sim::TrafficClass::kSequenceBackward, "attention.keys.grad", pass.layer});
  to_tokens(pass, grad_values, gradients.values,
            {sim::TrafficClass::kSequenceBackward, "attention.values.grad", pass.layer});
}

template struct DeviceSavedAttention<float>;
template struct DeviceSavedAttention<comm::Bf16>;
template struct DeviceSavedAttention<comm::Fp16>;
template class DeviceSequenceAttention<float>;
template class DeviceSequenceAttention<comm::Bf16>;
template class DeviceSequenceAttention<comm::Fp16>;

}  // namespace droptest::models
