// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/message_transform.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/on_host.h"
#include "comm/visit_elements.h"
#include "sim/error.h"
#include "sim/packets/interleaver.h"

namespace droptest::comm {
namespace {

// Calls f(part) in host memory for each part that is not empty, in order.
template <class F>
void for_each_part(Tensor data, std::span<const std::uint64_t> parts, const F& f) {
  change_on_host(data, [&](Tensor host) {
    std::uint64_t begin = 0;
    for (const std::uint64_t count : parts) {
      if (count > 0) f(slice(host, {begin, begin + count}));
      begin += count;
    }
  });
}

// Transforms floats in place, in a width that the transform supports; narrow ones are widened, and rounded afterwards.
template <class F>
void transform(Tensor part, const F& f) {
  visit_elements(part.type, [&]<class T>(std::type_identity<T>) {
    if constexpr (kIsNarrowFloat<T>) {
      const std::span<T> rounded = part.as<T>();
      std::vector<float> values(rounded.size());
      std::ranges::transform(rounded, values.begin(), widened<T>);
      f(std::span<float>(values));
      std::ranges::transform(values, rounded.begin(), narrowed<T>);
    } else if constexpr (std::is_floating_point_v<T>) {
      f(part.as<T>());
    } else {
      DROPTEST_CHECK(false, "a transform of integers");
    }
  });
}

// Marks all elements of each block of RandomisedHadamard that has a marked element.
void spread_over_blocks(std::span<std::byte> marks, std::uint64_t block_elems) {
  std::uint64_t size = block_elems;
  while (!marks.empty()) {
    while (size > marks.size()) size /= 2;
    const std::span<std::byte> block = marks.first(size);
    if (std::ranges::find(block, std::byte{1}) != block.end()) std::ranges::fill(block, std::byte{1});
    marks = marks.subspan(size);
  }
}

}  // namespace

MessageTransform::MessageTransform(const ClassNetwork& network, std::uint64_t seed) : network_(network) {
  if (network.recovery.hadamard_block_elems > 0) hadamard_.emplace(seed, 0, network.recovery.hadamard_block_elems);
}

bool MessageTransform::is_identity() const {
  return !hadamard_.has_value() && network_.recovery.interleave_packets <= 1;
}

void MessageTransform::check(ReduceOp op, ElementType type, const Message& message) const {
  if (!hadamard_.has_value() || (op != ReduceOp::kMax && !is_integer(type))) return;
  throw ConfigError("message \"" + std::string(message.name) + "\" of class " +
                    std::string(sim::traffic_class_name(message.traffic_class)) + ": recovery hadamard sends sums of " +
                    "elements in place of elements, but " +
                    (op == ReduceOp::kMax ? "the maximum of sums is not the sum of maxima"
                                          : "the elements are integers, which it does not give back") +
                    "; want a sum or mean of floats, or the class control");
}

void MessageTransform::interleave(Tensor part, Turn turn) {
  const std::size_t size = element_bytes(part.type);
  const sim::Interleaver interleaver(network_.recovery.interleave_packets, network_.payload_bytes / size);
  order_.assign(part.bytes.begin(), part.bytes.end());
  if (turn == Turn::kIn) {
    interleaver.spread(order_, part.bytes, size);
  } else {
    interleaver.gather(order_, part.bytes, size);
  }
}

void MessageTransform::forward(Tensor data, std::span<const std::uint64_t> parts) {
  for_each_part(data, parts, [this](Tensor part) {
    if (hadamard_.has_value()) {
      transform(part, [this](auto values) { hadamard_->forward(values); });
    }
    if (network_.recovery.interleave_packets > 1) interleave(part, Turn::kIn);
  });
}

void MessageTransform::inverse(Tensor data, std::span<const std::uint64_t> parts) {
  for_each_part(data, parts, [this](Tensor part) {
    if (network_.recovery.interleave_packets > 1) interleave(part, Turn::kOut);
    if (hadamard_.has_value()) {
      transform(part, [this](auto values) { hadamard_->inverse(values); });
    }
  });
}

void MessageTransform::inverse(std::vector<sim::ElementRange>& lost, ElementType type,
                               std::span<const std::uint64_t> parts) const {
  if (lost.empty()) return;
  const std::uint64_t count = std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
  std::vector<std::byte> is_lost(count);
  for (const sim::ElementRange& range : lost) {
    std::fill(is_lost.begin() + static_cast<std::ptrdiff_t>(range.begin),
              is_lost.begin() + static_cast<std::ptrdiff_t>(range.end), std::byte{1});
  }
  std::vector<std::byte> sent;
  std::span<std::byte> rest(is_lost);
  for (const std::uint64_t elems : parts) {
    const std::span<std::byte> part = rest.first(elems);
    rest = rest.subspan(elems);
    if (network_.recovery.interleave_packets > 1) {
      const sim::Interleaver interleaver(network_.recovery.interleave_packets,
                                         network_.payload_bytes / element_bytes(type));
      sent.assign(part.begin(), part.end());
      for (std::uint64_t i = 0; i < elems; ++i) part[i] = sent[interleaver.place(i, elems)];
    }
    if (hadamard_.has_value()) spread_over_blocks(part, network_.recovery.hadamard_block_elems);
  }
  lost.clear();
  for (std::uint64_t i = 0; i < count; ++i) {
    if (is_lost[i] == std::byte{0}) continue;
    if (lost.empty() || lost.back().end != i) lost.push_back({i, i});
    lost.back().end = i + 1;
  }
}

ConstTensor MessageTransform::transformed(ConstTensor input, std::span<const std::uint64_t> parts, Scratch& scratch) {
  const Tensor copied = scratch.take(Scratch::Slot::kTransformed, input, input.count_elems());
  copy(input, copied);
  forward(copied, parts);
  return copied;
}

}  // namespace droptest::comm
