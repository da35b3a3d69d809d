// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/delivered_gaps.h"

#include <algorithm>
#include <bit>

#include "comm/lossy/packet_runs.h"

namespace droptest::comm {

void LostBySome::start(const MessagePart& part, std::span<const sim::PacketMask* const> masks) {
  words_.clear();
  word_ = 0;
  if (part.elements.size() == 0) return;
  const std::uint64_t first = part.packets.packet_of(part.elements.begin);
  const std::uint64_t last = part.packets.packet_of(part.elements.end - 1);
  first_word_ = first / 64;
  words_.assign(last / 64 - first_word_ + 1, 0);
  for (const sim::PacketMask* mask : masks) {
    if (mask == nullptr) continue;
    const std::span<const std::uint64_t> words = mask->words().subspan(first_word_, words_.size());
    for (std::size_t w = 0; w < words.size(); ++w) words_[w] |= words[w];
  }
  words_.front() &= ~std::uint64_t{0} << first % 64;
  words_.back() &= ~std::uint64_t{0} >> (63 - last % 64);
}

bool LostBySome::next(std::uint64_t& packet) {
  while (word_ < words_.size() && words_[word_] == 0) ++word_;
  if (word_ == words_.size()) return false;
  std::uint64_t& bits = words_[word_];
  packet = 64 * (first_word_ + word_) + static_cast<std::uint64_t>(std::countr_zero(bits));
  bits &= bits - 1;
  return true;
}

void DeliveredGaps::start(ReduceOp op, ElementType type, const DeliveredScaling& scaling, const MessagePart& part,
                          std::span<const sim::PacketMask* const> contributions,
                          std::span<const sim::PacketMask* const> results,
                          std::span<const std::byte* const> inputs) {
  op_ = op;
  type_ = type;
  scaling_ = scaling;
  part_ = part.elements;
  packets_ = part.packets;
  contributions_ = contributions;
  results_ = results;
  inputs_ = inputs;
  factors_.assign(scaling.contributions == 1 ? 0 : inputs.size(), scaling.contributions);
  if (!factors_.empty() && scaling.exempt >= 0) factors_[static_cast<std::size_t>(scaling.exempt)] = 1;
  left_out_.clear();
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
  std::uint64_t packet = 0;
  if (!lost_contributions_.next(packet)) return nullptr;
  const sim::ElementRange elements = in_part(packet);
  const std::size_t offset_bytes = elements.begin * element_bytes(type_);
  present_.clear();
  absent_.clear();
  present_factors_.clear();
  for (std::size_t source = 0; source < inputs_.size(); ++source) {
    const std::byte* const input = inputs_[source] + offset_bytes;
    const sim::PacketMask* lost = contributions_[source];
    if (lost == nullptr || !lost->lost(packet)) {
      present_.push_back(input);
      if (!factors_.empty()) present_factors_.push_back(factors_[source]);
      continue;
    }
    absent_.push_back(input);
    if (source > 0) continue;
    present_.push_back(left_out());
    if (!factors_.empty()) present_factors_.push_back(1);
  }
  const std::size_t arrived = inputs_.size() - absent_.size();
  const bool scaled = scaling_.sums == DeliveredScaling::Sums::kByCount && arrived != 0;
  const double scale = scaled ? static_cast<double>(inputs_.size()) / static_cast<double>(arrived) : 1;
  input_gap_ = {elements.begin, elements.end, present_, absent_, present_factors_, scale};
  return &input_gap_;
}

const OutputGap* DeliveredGaps::next_output_gap() {
  std::uint64_t packet = 0;
  if (!lost_results_.next(packet)) return nullptr;
  const sim::ElementRange elements = in_part(packet);
  outputs_.clear();
  for (std::size_t result = 0; result < results_.size(); ++result) {
    if (results_[result] != nullptr && results_[result]->lost(packet)) outputs_.push_back(result);
  }
  output_gap_ = {elements.begin, elements.end, outputs_};
  return &output_gap_;
}

}  // namespace droptest::comm
