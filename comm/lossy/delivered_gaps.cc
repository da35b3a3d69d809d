// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/delivered_gaps.h"

#include <algorithm>
#include <bit>

#include "comm/lossy/packet_runs.h"

namespace droptest::comm {

// Without branches that depend on fates: no processor predicts those.
void LostBySome::add_losses(std::uint64_t first_packet, std::uint64_t by_some, std::span<const Word> words) {
  for (; by_some != 0; by_some &= by_some - 1) {
    const int bit = std::countr_zero(by_some);
    if (losses_.size() < found_ + words.size()) losses_.resize(2 * (found_ + words.size()));
    for (const Word& word : words) {
      losses_[found_] = {first_packet + static_cast<std::uint64_t>(bit), word.message};
      found_ += word.bits >> bit & 1;
    }
  }
}

template <class WordOf>
void LostBySome::find(const MessagePart& part, std::size_t messages, const WordOf& word_of) {
  found_ = 0;
  taken_ = 0;
  if (part.elements.size() == 0) return;
  const std::uint64_t first = part.packets.packet_of(part.elements.begin);
  const std::uint64_t last = part.packets.packet_of(part.elements.end - 1);
  for (std::uint64_t w = first / 64; w <= last / 64; ++w) {
    std::uint64_t in_part = ~std::uint64_t{0};
    if (w == first / 64) in_part &= ~std::uint64_t{0} << first % 64;
    if (w == last / 64) in_part &= ~std::uint64_t{0} >> (63 - last % 64);
    words_.resize(messages);
    std::uint64_t by_some = 0;
    std::size_t with_losses = 0;
    for (std::size_t m = 0; m < messages; ++m) {
      const std::uint64_t bits = word_of(m, w) & in_part;
      words_[with_losses] = {bits, m};
      with_losses += bits != 0 ? 1 : 0;
      by_some |= bits;
    }
    add_losses(64 * w, by_some, std::span(words_).first(with_losses));
  }
}

void LostBySome::start(const MessagePart& part, std::span<const sim::PacketMask* const> masks) {
  find(part, masks.size(), [masks](std::size_t message, std::uint64_t word) {
    return masks[message] == nullptr ? 0 : masks[message]->words()[word];
  });
}

void LostBySome::start(const MessagePart& part, std::span<const std::span<const std::uint64_t>> words_of_masks) {
  find(part, words_of_masks.size(), [words_of_masks](std::size_t message, std::uint64_t word) {
    return words_of_masks[message].empty() ? 0 : words_of_masks[message][word];
  });
}

void DeliveredGaps::start(ReduceOp op, ElementType type, const DeliveredScaling& scaling, const MessagePart& part,
                          std::span<const sim::PacketMask* const> contributions,
                          std::span<const std::span<const std::uint64_t>> results,
                          std::span<const std::byte* const> inputs) {
  const bool same_left_out = op == op_ && type == type_ && part.packets.elems_per_packet() == packets_.elems_per_packet();
  if (!same_left_out) left_out_.clear();
  op_ = op;
  type_ = type;
  scaling_ = scaling;
  part_ = part.elements;
  packets_ = part.packets;
  inputs_ = inputs;
  factors_.assign(scaling.contributions == 1 ? 0 : inputs.size(), scaling.contributions);
  if (!factors_.empty() && scaling.exempt >= 0) factors_[static_cast<std::size_t>(scaling.exempt)] = 1;
  lost_contributions_.start(part, contributions);
  lost_results_.start(part, results);
}

// The elements of a packet that are in the part, counted from its begin.
sim::ElementRange DeliveredGaps::in_part(std::uint64_t packet) const {
  const sim::ElementRange elements = packets_.elements(packet);
  return {std::max(elements.begin, part_.begin) - part_.begin, std::min(elements.end, part_.end) - part_.begin};
}

const std::byte* DeliveredGaps::left_out() {
  if (left_out_.empty()) {
    left_out_.resize(packets_.elems_per_packet() * element_bytes(type_));
    set_left_out(Tensor(type_, left_out_), op_);
  }
  return left_out_.data();
}

const ReductionGap* DeliveredGaps::next_input_gap() {
  const std::span<const LostBySome::Loss> ahead = lost_contributions_.ahead();
  if (ahead.empty()) return nullptr;
  const std::uint64_t packet = ahead[0].packet;
  const sim::ElementRange elements = in_part(packet);
  const std::size_t offset_bytes = elements.begin * element_bytes(type_);
  present_.clear();
  absent_.clear();
  present_factors_.clear();
  const auto add = [this](const std::byte* input, std::size_t source) {
    present_.push_back(input);
    if (!factors_.empty()) present_factors_.push_back(factors_[source]);
  };
  std::size_t source = 0;
  for (const LostBySome::Loss& loss : ahead) {
    if (loss.packet != packet) break;
    for (; source < loss.message; ++source) add(inputs_[source] + offset_bytes, source);
    absent_.push_back(inputs_[source++] + offset_bytes);
    if (source > 1) continue;
    present_.push_back(left_out());
    if (!factors_.empty()) present_factors_.push_back(1);
  }
  for (; source < inputs_.size(); ++source) add(inputs_[source] + offset_bytes, source);
  lost_contributions_.take(absent_.size());
  const std::size_t arrived = inputs_.size() - absent_.size();
  const bool scaled = scaling_.sums == DeliveredScaling::Sums::kByCount && arrived != 0;
  const double scale = scaled ? static_cast<double>(inputs_.size()) / static_cast<double>(arrived) : 1;
  input_gap_ = {elements.begin, elements.end, present_, absent_, present_factors_, scale};
  return &input_gap_;
}

const OutputGap* DeliveredGaps::next_output_gap() {
  const std::span<const LostBySome::Loss> ahead = lost_results_.ahead();
  if (ahead.empty()) return nullptr;
  const std::uint64_t packet = ahead[0].packet;
  const sim::ElementRange elements = in_part(packet);
  outputs_.clear();
  for (const LostBySome::Loss& loss : ahead) {
    if (loss.packet != packet) break;
    outputs_.push_back(loss.message);
  }
  lost_results_.take(outputs_.size());
  output_gap_ = {elements.begin, elements.end, outputs_};
  return &output_gap_;
}

}  // namespace droptest::comm
