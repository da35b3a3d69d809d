// SPDX-License-Identifier: Apache-2.0
#include "models/sequence/sequence_attention.h"

#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
void check_rank_shape(const SequenceParts& parts, const SequenceFactors& factors, int rank, std::int64_t heads,
                      std::string_view tensor, const HeadShape& got, const HeadShape& like) {
  if (parts.ranks() != factors.ulysses * factors.ring) {
    throw ConfigError("sequence: got parts of " + std::to_string(parts.ranks()) + " ranks, want " +
                      std::to_string(factors.ulysses * factors.ring));
  }
  check_shape(tensor, got, {like.batch, parts.length_of(rank), heads, like.width}, TokenLayout::kBatchFirst);
}

template <class T>
SequenceAttention<T>::SequenceAttention(comm::Communicator* group, const SequenceFactors& factors, std::int64_t heads)
    : rank_(checked_rank(group, factors)),
      factors_(factors),
      heads_(heads),
      exchange_(part_of_group(group, factors.ulysses, rank_ / factors.ulysses, owned_), heads),
      ring_(part_of_group(group, factors.ring, rank_ % factors.ulysses, owned_)) {}

template <class T>
HeadShape SequenceAttention<T>::gathered(const SequenceParts& parts, std::int64_t batch, std::int64_t width) const {
  HeadShape shape{batch, 0, exchange_.heads(), width};
  for (const std::int64_t length : group_lengths(parts)) shape.tokens += length;
  return shape;
}

template <class T>
std::span<const std::int64_t> SequenceAttention<T>::group_lengths(const SequenceParts& parts) const {
  const auto size = static_cast<std::size_t>(factors_.ulysses);
  return parts.lengths().subspan(static_cast<std::size_t>(ring_.rank()) * size, size);
}

template <class T>
std::vector<std::vector<TokenRun>> SequenceAttention<T>::ring_parts(const SequenceParts& parts) const {
  std::vector<std::vector<TokenRun>> runs;
  for (int part = 0; part < factors_.ring; ++part)
    runs.push_back(parts.runs(part * factors_.ulysses, factors_.ulysses));
  return runs;
}

template <class T>
DropoutMask SequenceAttention<T>::dropout_of(const SequencePass& pass) const {
  DropoutMask dropout = pass.dropout;
  dropout.first_head += exchange_.first_head();
  return dropout;
}

template <class T>
void SequenceAttention<T>::forward(const SequencePass& pass, const HeadView<const T>& queries,
                                   const HeadView<const T>& keys, const HeadView<const T>& values,
                                   const HeadView<T>& output, SavedAttention<T>& saved, const Team& team) {
  check(pass, "queries", queries.shape, queries.shape);
  check(pass, "keys", keys.shape, queries.shape);
  check(pass, "values", values.shape, queries.shape);
  check(pass, "output", output.shape, queries.shape);
  pass.mask.check_covers(queries.shape.batch, pass.parts.length());
  const HeadShape shape = gathered(pass.parts, queries.shape.batch, queries.shape.width);
  const std::span<const std::int64_t> lengths = group_lengths(pass.parts);
  saved.lost = {};
  saved.absent.assign(shape.elems() / static_cast<std::size_t>(shape.width), 0);
  const bool stops = exchange_.stops_lost_gradients(sim::TrafficClass::kSequenceForward);
  const auto gather = [&](std::string_view name, const HeadView<const T>& local, std::vector<T>& all,
                          LostElements& lost, bool is_left_out) {
    all.resize(shape.elems());
    comm::Message message{sim::TrafficClass::kSequenceForward, name, pass.layer};
    if (is_left_out || stops) message.lost = &lost;
    exchange_.to_heads(local, lengths, all, message);
    if (is_left_out) mark_absent(std::exchange(lost, {}), shape.width, saved.absent);
  };
  const bool leaves_out = exchange_.leaves_lost_out(sim::TrafficClass::kSequenceForward);
  gather("attention.queries", queries, saved.queries, saved.lost.queries, false);
  gather("attention.keys", keys, saved.keys, saved.lost.keys, leaves_out);
  gather("attention.values", values, saved.values, saved.lost.values, leaves_out);
  if (!leaves_out) saved.absent.clear();
  saved.output.resize(shape.elems());
  saved.log_sum_exp.resize(shape.elems() / static_cast<std::size_t>(shape.width));
  const std::vector<std::vector<TokenRun>> runs = ring_parts(pass.parts);
  ring_.forward({view_of("queries", std::span<const T>(saved.queries), shape, TokenLayout::kSequenceFirst), saved.keys,
                 saved.values, saved.absent, runs, pass.mask, pass.layer, dropout_of(pass)},
                view_of("output", std::span(saved.output), shape, TokenLayout::kSequenceFirst), saved.log_sum_exp,
                saved.losses, team);
  comm::Message of_output{sim::TrafficClass::kSequenceForward, "attention.output", pass.layer};
  if (stops) of_output.lost = &saved.lost.output;
  exchange_.to_tokens(saved.output, lengths, output, of_output);
}

template <class T>
void SequenceAttention<T>::backward(const SequencePass& pass, const HeadView<const T>& grad_output,
                                    const SavedAttention<T>& saved, const AttentionGradients<T>& gradients,
                                    const Team& team) {
  const HeadShape& like = grad_output.shape;
  check(pass, "grad_output", like, like);
  check(pass, "gradient of queries", gradients.queries.shape, like);
  check(pass, "gradient of keys", gradients.keys.shape, like);
  check(pass, "gradient of values", gradients.values.shape, like);
  const HeadShape shape = gathered(pass.parts, like.batch, like.width);
  const std::span<const std::int64_t> lengths = group_lengths(pass.parts);
  grad_output_.resize(shape.elems());
  exchange_.to_heads(grad_output, lengths, grad_output_,
                     {sim::TrafficClass::kSequenceBackward, "attention.output.grad", pass.layer}, saved.lost.output);
  const auto view = [&](const std::vector<T>& elems) {
    return view_of("saved", std::span<const T>(elems), shape, TokenLayout::kSequenceFirst);
  };
  const auto zeros = [&](std::vector<T>& elems) {
    elems.assign(shape.elems(), T(0));
    return view_of("gradients", std::span(elems), shape, TokenLayout::kSequenceFirst);
  };
  const std::vector<std::vector<TokenRun>> runs = ring_parts(pass.parts);
  ring_.backward(
      {view(saved.queries), saved.keys, saved.values, saved.absent, runs, pass.mask, pass.layer, dropout_of(pass)},
      {view(saved.output), saved.log_sum_exp, view(grad_output_)}, saved.losses,
      {zeros(grad_queries_), zeros(grad_keys_), zeros(grad_values_)}, team);
  zero_lost(saved.lost.queries, std::span(grad_queries_));
  zero_lost(saved.lost.keys, std::span(grad_keys_));
  zero_lost(saved.lost.values, std::span(grad_values_));
  exchange_.to_tokens(grad_queries_, lengths, gradients.queries,
                      {sim::TrafficClass::kSequenceBackward, "attention.queries.grad", pass.layer});
  exchange_.to_tokens(grad_keys_, lengths, gradients.keys,
                      {sim::TrafficClass::kSequenceBackward, "attention.keys.grad", pass.layer});
  exchange_.to_tokens(grad_values_, lengths, gradients.values,
                      {sim::TrafficClass::kSequenceBackward, "attention.values.grad", pass.layer});
}

template <class T>
SequenceTraffic SequenceAttention<T>::traffic(const SequenceParts& parts, std::int64_t batch,
                                              std::int64_t width) const {
  const HeadShape shape = gathered(parts, batch, width);
  const HeadShape mine{batch, parts.length_of(rank_), heads_, width};
  const HeadShape stays{batch, mine.tokens, shape.heads, width};
  // To the heads three times, back once; and the other way round.
  const std::uint64_t to_heads = mine.elems() - stays.elems();
  const std::uint64_t to_tokens = shape.elems() - stays.elems();
  SequenceTraffic traffic{3 * to_heads + to_tokens, to_heads + 3 * to_tokens};
  const std::vector<std::vector<TokenRun>> runs = ring_parts(parts);
  const auto elems_of = [&](int part) {
    HeadShape of_part = shape;
    of_part.tokens = 0;
    for (const TokenRun& run : runs[static_cast<std::size_t>(part)]) of_part.tokens += run.count;
    return of_part.elems();
  };
  // All parts but the next rank's go on as keys and values, and all but this rank's as gradients.
  for (int part = 0; part < factors_.ring; ++part) {
    const std::uint64_t keys_and_values = 2 * elems_of(part);
    const bool is_next = part == (ring_.rank() + 1) % factors_.ring;
    if (!is_next) traffic.forward_elems += keys_and_values;
    if (!is_next) traffic.backward_elems += keys_and_values;
    if (part != ring_.rank()) traffic.backward_elems += keys_and_values;
  }
  return traffic;
}

template <class T>
std::uint64_t SequenceAttention<T>::saved_elems(const SequenceParts& parts, std::int64_t batch,
                                                std::int64_t width) const {
  const HeadShape shape = gathered(parts, batch, width);
  return 4 * shape.elems() + shape.elems() / static_cast<std::uint64_t>(shape.width);
}

template <class T>
std::int64_t SequenceAttention<T>::pairs(const SequenceParts& parts, Causality causality) const {
  std::vector<TokenRun> all;
  const std::vector<std::vector<TokenRun>> runs = ring_parts(parts);
  for (const std::vector<TokenRun>& part : runs) all.insert(all.end(), part.begin(), part.end());
  return visible_pairs(pattern_of(runs[static_cast<std::size_t>(ring_.rank())], all), exchange_.heads(), causality);
}

template class SequenceAttention<float>;
template class SequenceAttention<double>;

}  // namespace droptest::models
