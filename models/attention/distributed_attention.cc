// SPDX-License-Identifier: Apache-2.0
#include "models/attention/distributed_attention.h"

#include <numeric>
#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
TokenLayout token_layout_from_name(std::string_view name) {
  if (name == "batch_first") return TokenLayout::kBatchFirst;
  if (name == "sequence_first") return TokenLayout::kSequenceFirst;
  throw ConfigError("layout: got \"" + std::string(name) + "\", want one of batch_first, sequence_first");
}

template <class T>
DistributedAttention<T>::DistributedAttention(comm::Communicator& group, LocalAttention<T>& local, TokenLayout layout,
                                              std::int64_t heads, std::int64_t width)
    : group_(group),
      local_(local),
      layout_(layout),
      heads_(heads),
      width_(width),
      exchange_(group.world_size() == 1 ? nullptr : &group, heads),
      parts_(SequenceParts::even(0, group.world_size())) {}

template <class T>
void DistributedAttention<T>::set_lengths(std::int64_t batch, std::int64_t tokens) {
  parts_ = SequenceParts::agreed(tokens, group_);
  batch_ = batch;
}

template <class T>
SharedMask<T> DistributedAttention<T>::combine(const AttentionMask& mask) {
  mask.check_covers(batch_, parts_.length());
  if (!mask.has_values() && mask.causality() == Causality::kAny) return nullptr;
  const auto combined = [&] {
    std::vector<std::int64_t> positions(static_cast<std::size_t>(parts_.length()));
    std::iota(positions.begin(), positions.end(), 0);
    return std::make_shared<const std::vector<T>>(combined_mask<T>(mask, batch_, positions, positions));
  };
  if (mask.has_values()) return combined();
  SharedMask<T>& kept = causal_[{batch_, parts_.length()}];
  if (kept == nullptr) kept = combined();
  return kept;
}

template <class T>
HeadView<T> DistributedAttention<T>::gather(std::string_view name, const Input& input, sim::TrafficClass traffic_class,
                                            int layer, std::vector<T>& to, LostElements* lost,
                                            const LostElements& stopped) {
  const HeadView<const T> local = view_of(name, input.elems, input.extents, local_shape(), layout_);
  const HeadShape shape = gathered_shape();
  const std::string message_name = "attention." + std::string(name);
  comm::Message message{traffic_class, message_name, layer};
  message.lost = lost;
  travelling_.resize(shape.elems());
  exchange_.to_heads(local, parts_.lengths(), travelling_, message, Team(1), stopped);
  to.resize(shape.elems());
  const HeadView<T> view = view_of("gathered", std::span(to), shape, layout_);
  copy_heads(view_of("gathered", std::span<const T>(travelling_), shape, TokenLayout::kSequenceFirst), view);
  return view;
}

template <class T>
void DistributedAttention<T>::scatter(std::string_view name, const std::vector<T>& from, std::span<T> to,
                                      sim::TrafficClass traffic_class, int layer, LostElements* lost,
                                      const LostElements& stopped) {
  const HeadShape shape = gathered_shape();
  const std::string message_name = "attention." + std::string(name);
  comm::Message message{traffic_class, message_name, layer};
  message.lost = lost;
  travelling_.resize(shape.elems());
  copy_heads(view_of("gathered", std::span<const T>(from), shape, layout_),
             view_of("gathered", std::span(travelling_), shape, TokenLayout::kSequenceFirst));
  zero_lost(stopped, std::span(travelling_));
  exchange_.to_tokens(travelling_, parts_.lengths(), view_of(name, to, local_shape(), layout_), message, Team(1));
}

template <class T>
LocalInputs<T> DistributedAttention<T>::inputs() const {
  const auto view = [this](const std::vector<T>& elems) {
    return view_of("gathered", std::span<const T>(elems), gathered_shape(), layout_);
  };
  return {view(queries_), view(keys_),
          view(values_),  mask_ == nullptr ? std::span<const T>() : std::span<const T>(*mask_),
          absent_,        exchange_.first_head()};
}

template <class T>
void DistributedAttention<T>::forward(const Input& queries, const Input& keys, const Input& values,
                                      const SharedMask<T>& mask, std::span<T> output, int layer) {
  const HeadShape shape = gathered_shape();
  if (mask != nullptr && mask->size() != static_cast<std::size_t>(batch_ * shape.tokens * shape.tokens)) {
    throw ConfigError("mask: got " + std::to_string(mask->size()) + " elements, want [batch " + std::to_string(batch_) +
                      ", queries " + std::to_string(shape.tokens) + ", keys " + std::to_string(shape.tokens) +
                      "]: combine() makes it after set_lengths()");
  }
  mask_ = mask;
  const bool leaves_out = exchange_.leaves_lost_out(sim::TrafficClass::kSequenceForward);
  absent_.assign(leaves_out ? static_cast<std::size_t>(shape.tokens * shape.batch * shape.heads) : 0, 0);
  const bool stops = exchange_.stops_lost_gradients(sim::TrafficClass::kSequenceForward);
  lost_ = {};
  const auto take = [&](std::string_view name, const Input& input, std::vector<T>& to, LostElements& lost,
                        bool is_left_out) {
    gather(name, input, sim::TrafficClass::kSequenceForward, layer, to, is_left_out || stops ? &lost : nullptr, {});
    if (is_left_out) mark_absent(std::exchange(lost, {}), width_, absent_);
  };
  take("queries", queries, queries_, lost_.queries, false);
  take("keys", keys, keys_, lost_.keys, leaves_out);
  take("values", values, values_, lost_.values, leaves_out);
  output_.assign(shape.elems(), T(0));
  local_.forward(inputs(), view_of("output", std::span(output_), shape, layout_));
  scatter("output", output_, output, sim::TrafficClass::kSequenceForward, layer, stops ? &lost_.output : nullptr, {});
}

template <class T>
void DistributedAttention<T>::backward(const Input& grad_output, std::span<T> grad_queries, std::span<T> grad_keys,
                                       std::span<T> grad_values, int layer) {
  const HeadShape shape = gathered_shape();
  std::vector<T> grad;
  const HeadView<T> of_output =
      gather("output.grad", grad_output, sim::TrafficClass::kSequenceBackward, layer, grad, nullptr, lost_.output);
  std::vector<T> of_queries(shape.elems());
  std::vector<T> of_keys(shape.elems());
  std::vector<T> of_values(shape.elems());
  const auto view = [&](std::vector<T>& elems) { return view_of("gradient", std::span(elems), shape, layout_); };
  local_.backward(inputs(), view(output_), of_output, {view(of_queries), view(of_keys), view(of_values)});
  const auto send = [&](std::string_view name, const std::vector<T>& from, std::span<T> to,
                        const LostElements& stopped) {
    scatter(name, from, to, sim::TrafficClass::kSequenceBackward, layer, nullptr, stopped);
  };
  send("queries.grad", of_queries, grad_queries, lost_.queries);
  send("keys.grad", of_keys, grad_keys, lost_.keys);
  send("values.grad", of_values, grad_values, lost_.values);
}

template class DistributedAttention<float>;
template class DistributedAttention<double>;

}  // namespace droptest::models
