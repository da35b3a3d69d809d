// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/delivered_gaps.h"

#include <algorithm>
#include <bit>

#include "comm/lossy/fill/packet_runs.h"

namespace droptest::comm {

template <class WordsOf>
void LostBySome::turn(const MessagePart& part, std::size_t messages, const WordsOf& words_of) {
  ahead_.clear();
  messages_ = messages;
  word_ = 0;
  if (part.elements.size() == 0) return;
  const std::uint64_t first = part.packets.packet_of(part.elements.begin);
  const std::uint64_t last = part.packets.packet_of(part.elements.end - 1);
  first_word_ = first / 64;
  ahead_.assign(last / 64 - first_word_ + 1, 0);
  bits_.assign(messages * ahead_.size(), 0);
  for (std::size_t m = 0; m < messages; ++m) {
    const std::span<const std::uint64_t> words = words_of(m);
    if (words.empty()) continue;
    for (std::size_t w = 0; w < ahead_.size(); ++w) {
      bits_[w * messages + m] = words[first_word_ + w];
      ahead_[w] |= words[first_word_ + w];
    }
  }
  ahead_.front() &= ~std::uint64_t{0} << first % 64;
  ahead_.back() &= ~std::uint64_t{0} >> (63 - last % 64);
}

void LostBySome::start(const MessagePart& part, std::span<const sim::PacketMask* const> masks) {
  turn(part, masks.size(),
       [masks](std::size_t m) { return masks[m] == nullptr ? std::span<const std::uint64_t>{} : masks[m]->words(); });
}

void LostBySome::start(const MessagePart& part, std::span<const std::span<const std::uint64_t>> words_of_masks) {
  turn(part, words_of_masks.size(), [words_of_masks](std::size_t m) { return words_of_masks[m]; });
}

bool LostBySome::next() {
  while (word_ < ahead_.size() && ahead_[word_] == 0) ++word_;
  if (word_ == ahead_.size()) return false;
  bit_ = ahead_[word_] & (~ahead_[word_] + 1);
  ahead_[word_] ^= bit_;
  of_word_ = &bits_[word_ * messages_];
  return true;
}

void DeliveredGaps::start(ReduceOp op, ElementType type, const DeliveredScaling& scaling, const MessagePart& part,
                          std::span<const sim::PacketMask* const> contributions,
                          std::span<const std::span<const std::uint64_t>> results,
                          std::span<const std::byte* const> inputs) {
  const bool same_left_out =
      op == op_ && type == type_ && part.packets.elems_per_packet() == packets_.elems_per_packet();
  if (!same_left_out) left_out_.clear();
  op_ = op;
  type_ = type;
  scaling_ = scaling;
  part_ = part.elements;
  packets_ = part.packets;
  inputs_ = inputs;
  results_ = results.size();
  factors_.assign(scaling.contributions == 1 ? 0 : inputs.size(), scaling.contributions);
  const auto exempt = static_cast<std::size_t>(scaling.exempt);  // none: past the end
  if (exempt < factors_.size()) factors_[exempt] = 1;
  lost_contributions_.start(part, contributions);
  lost_results_.start(part, results);
}

// The elements of a packet that are in the part, counted from the part's begin.
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

// The loop has few branches on fates: processors cannot predict them.
const ReductionGap* DeliveredGaps::next_input_gap() {
  if (!lost_contributions_.next()) return nullptr;
  const sim::ElementRange elements = in_part(lost_contributions_.packet());
  if (scaling_.substitute >= 0) return substituted_gap(elements);
  const std::size_t offset_bytes = elements.begin * element_bytes(type_);
  const std::size_t sources = inputs_.size();
  present_.resize(sources + 1);
  absent_.resize(sources);
  present_[0] = left_out();
  std::size_t present = lost_contributions_.lost_by(0);
  std::size_t absent = 0;
  for (std::size_t source = 0; source < sources; ++source) {
    const std::size_t lost = lost_contributions_.lost_by(source);
    present_[present] = absent_[absent] = inputs_[source] + offset_bytes;
    present += 1 - lost;
    absent += lost;
  }
  const std::size_t arrived = sources - absent;
  const bool scaled = scaling_.sums == DeliveredScaling::Sums::kByCount && arrived != 0;
  const double scale = scaled ? static_cast<double>(sources) / static_cast<double>(arrived) : 1;
  const double divisor = op_ == ReduceOp::kMean ? static_cast<double>(sources) : 1;
  input_gap_ = {elements.begin,
                elements.end,
                std::span(present_).first(present),
                std::span(absent_).first(absent),
                factors_of_gap(),
                divisor,
                scale};
  return &input_gap_;
}

// A single contribution is copied: the mean of N equal values can differ from the value in the last bit.
const ReductionGap* DeliveredGaps::substituted_gap(sim::ElementRange elements) {
  const std::size_t offset_bytes = elements.begin * element_bytes(type_);
  const std::byte* const substitute = inputs_[static_cast<std::size_t>(scaling_.substitute)] + offset_bytes;
  present_.clear();
  absent_.clear();
  for (std::size_t source = 0; source < inputs_.size(); ++source) {
    const bool lost = lost_contributions_.lost_by(source) != 0;
    present_.push_back(lost ? substitute : inputs_[source] + offset_bytes);
    if (lost) absent_.push_back(inputs_[source] + offset_bytes);
  }
  const bool is_alone = absent_.size() + 1 == inputs_.size();
  if (is_alone) present_.assign(1, substitute);
  const double divisor = is_alone ? 1 : static_cast<double>(inputs_.size());
  input_gap_ = {elements.begin, elements.end, present_, absent_, {}, divisor, 1};
  return &input_gap_;
}

std::span<const double> DeliveredGaps::factors_of_gap() {
  if (factors_.empty()) return {};
  present_factors_.clear();
  if (lost_contributions_.lost_by(0) != 0) present_factors_.push_back(1);
  for (std::size_t source = 0; source < factors_.size(); ++source) {
    if (lost_contributions_.lost_by(source) == 0) present_factors_.push_back(factors_[source]);
  }
  return present_factors_;
}

const OutputGap* DeliveredGaps::next_output_gap() {
  if (!lost_results_.next()) return nullptr;
  const sim::ElementRange elements = in_part(lost_results_.packet());
  outputs_.resize(results_ + 1);
  std::size_t lost = 0;
  for (std::size_t result = 0; result < results_; ++result) {
    outputs_[lost] = result;
    lost += lost_results_.lost_by(result);
  }
  output_gap_ = {elements.begin, elements.end, std::span(outputs_).first(lost)};
  return &output_gap_;
}

}  // namespace droptest::comm
