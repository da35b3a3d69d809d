// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/delivered_reduction.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/device/tensor_operations.h"
#include "comm/rank_order_reduction.h"

namespace droptest::comm {
namespace {

constexpr std::size_t kBlockBytes = kReductionBlockBytes;

}  // namespace

void DeliveredReduction::start(const sim::Packetizer& packets, int contributions) {
  start(packets, contributions, {0, packets.count_elems()});
}

void DeliveredReduction::start(const sim::Packetizer& packets, int contributions, sim::ElementRange part) {
  packets_ = packets;
  part_ = part;
  contributions_.start(contributions);
  results_.start(contributions);
}

void DeliveredReduction::begin_walk() {
  run_ = {part_.begin, part_.begin};
  sources_.clear();
  if (part_.size() == 0) return;
  const std::uint64_t first = packets_.packet_of(part_.begin);
  for (int source = 0; source < static_cast<int>(contributions_.all().size()); ++source) {
    sources_.push_back({PacketRunCursor(contributions_.of(source), packets_, first), {run_}});
  }
}

bool DeliveredReduction::next_run() {
  if (run_.end == part_.end) return false;
  run_ = {run_.end, part_.end};
  for (Source& source : sources_) {
    if (source.run.elements.end == run_.begin) source.cursor.next(source.run);
    run_.end = std::min(run_.end, source.run.elements.end);
  }
  return true;
}

// The elements of a packet that are in the part, counted from its begin.
sim::ElementRange DeliveredReduction::in_part(std::uint64_t packet) const {
  const sim::ElementRange elements = packets_.elements(packet);
  return {std::max(elements.begin, part_.begin) - part_.begin, std::min(elements.end, part_.end) - part_.begin};
}

// visit(packet) for each of the part's packets that some rank lost, in order.
template <class Visit>
void DeliveredReduction::visit_lost(const LossesByRank& losses, const Visit& visit) {
  if (part_.size() == 0) return;
  const std::uint64_t first = packets_.packet_of(part_.begin);
  const std::uint64_t last = packets_.packet_of(part_.end - 1);
  const std::uint64_t first_word = first / 64;
  lost_by_some_.assign(last / 64 - first_word + 1, 0);
  for (const sim::PacketMask& mask : losses.all()) {
    if (mask.size() == 0) continue;
    const std::span<const std::uint64_t> words = mask.words().subspan(first_word, lost_by_some_.size());
    for (std::size_t w = 0; w < words.size(); ++w) lost_by_some_[w] |= words[w];
  }
  lost_by_some_.front() &= ~std::uint64_t{0} << first % 64;
  lost_by_some_.back() &= ~std::uint64_t{0} >> (63 - last % 64);
  for (std::size_t w = 0; w < lost_by_some_.size(); ++w) {
    for (std::uint64_t bits = lost_by_some_[w]; bits != 0; bits &= bits - 1) {
      visit(64 * (first_word + w) + static_cast<std::uint64_t>(std::countr_zero(bits)));
    }
  }
}

// The inputs that arrived of a packet, from its first element in the part on, then the others.
ReductionGap DeliveredReduction::gap_of(std::uint64_t packet, ReduceOp op, ElementType type, const Scaling& scaling,
                                        std::span<const std::byte* const> contributions) {
  const sim::ElementRange elements = in_part(packet);
  const std::span<const sim::PacketMask> masks = contributions_.all();
  const std::size_t offset_bytes = elements.begin * element_bytes(type);
  const std::size_t first = gap_inputs_.size();
  const auto is_lost = [&](std::size_t source) { return masks[source].size() != 0 && masks[source].lost(packet); };
  if (is_lost(0)) {
    gap_inputs_.push_back(left_out(op, type));
    if (scaling.contributions != 1) gap_factors_.push_back(1);
  }
  std::size_t arrived = 0;
  for (std::size_t s = 0; s < masks.size(); ++s) {
    if (is_lost(s)) continue;
    ++arrived;
    gap_inputs_.push_back(contributions[s] + offset_bytes);
    if (scaling.contributions != 1) gap_factors_.push_back(factors_[s]);
  }
  const std::size_t present = gap_inputs_.size() - first;
  for (std::size_t s = 0; s < masks.size(); ++s) {
    if (is_lost(s)) gap_inputs_.push_back(contributions[s] + offset_bytes);
  }
  ReductionGap gap;
  gap.begin = elements.begin;
  gap.end = elements.end;
  gap.present = std::span(gap_inputs_).subspan(first, present);
  gap.absent = std::span(gap_inputs_).subspan(first + present);
  if (scaling.contributions != 1) gap.factors = std::span(gap_factors_).last(present);
  if (scaling.sums == Scaling::Sums::kByCount && arrived != 0) {
    gap.scale = static_cast<double>(masks.size()) / static_cast<double>(arrived);
  }
  return gap;
}

void DeliveredReduction::find_gaps(ReduceOp op, ElementType type, const Scaling& scaling,
                                   std::span<const std::byte* const> contributions) {
  gaps_.clear();
  gap_inputs_.clear();
  gap_factors_.clear();
  left_out_.clear();
  const std::size_t sources = contributions.size();
  factors_.assign(scaling.contributions == 1 ? 0 : sources, scaling.contributions);
  if (!factors_.empty() && scaling.exempt >= 0) factors_[static_cast<std::size_t>(scaling.exempt)] = 1;
  std::size_t number = 0;
  visit_lost(contributions_, [&](std::uint64_t /*packet*/) { ++number; });
  // Gaps keep spans of these, so that they may not move.
  gap_inputs_.reserve(number * (sources + 1));
  gap_factors_.reserve(factors_.empty() ? 0 : number * (sources + 1));
  visit_lost(contributions_, [&](std::uint64_t packet) {
    gaps_.push_back(gap_of(packet, op, type, scaling, contributions));
  });
}

void DeliveredReduction::find_result_gaps() {
  result_gaps_.clear();
  const std::span<const sim::PacketMask> masks = results_.all();
  visit_lost(results_, [&](std::uint64_t packet) {
    const sim::ElementRange elements = in_part(packet);
    for (std::size_t r = 0; r < masks.size(); ++r) {
      if (masks[r].size() != 0 && masks[r].lost(packet)) result_gaps_.push_back({elements.begin, elements.end, r});
    }
  });
}

// A packet of what a reduction begins with where its first contribution is lost.
const std::byte* DeliveredReduction::left_out(ReduceOp op, ElementType type) {
  if (left_out_.empty()) {
    left_out_.resize(packets_.elems_per_packet() * element_bytes(type));
    set_left_out(Tensor(type, left_out_), op);
  }
  return left_out_.data();
}

void DeliveredReduction::reduce(ReduceOp op, ConstTensor like, const Scaling& scaling,
                                std::span<const std::byte* const> contributions, std::span<std::byte* const> results) {
  const ElementType type = like.type;
  if (like.stream != nullptr) {
    const HoleRules rules{
        scaling.contributions, scaling.exempt,
        scaling.sums == Scaling::Sums::kByCount ? HoleRules::Sums::kByCount : HoleRules::Sums::kAsTheyAre};
    return reduce_delivered_on_device(op, type, {packets_, part_, contributions_.all()}, rules, contributions, results, *like.stream);
  }
  find_gaps(op, type, scaling, contributions);
  find_result_gaps();
  reduce_in_rank_order(op, type, contributions, results, part_.size(), {gaps_, result_gaps_, factors_});
}

void DeliveredReduction::reduce_with_last(ReduceOp op, Tensor remembered,
                                          std::span<const std::byte* const> contributions,
                                          std::span<std::byte* const> results) {
  if (remembered.stream != nullptr) {
    return reduce_with_last_on_device(op, {packets_, part_, contributions_.all()}, remembered, contributions, results);
  }
  const std::size_t size = element_bytes(remembered.type);
  const std::uint64_t block_elems = kBlockBytes / size;
  for (begin_walk(); next_run();) {
    for (std::uint64_t begin = run_.begin; begin < run_.end; begin += block_elems) {
      const std::uint64_t count = std::min(block_elems, run_.end - begin);
      arrived_.clear();
      outputs_.clear();
      for (std::size_t s = 0; s < sources_.size(); ++s) {
        std::byte* last = remembered.bytes.data() + (s * packets_.count_elems() + begin) * size;
        const bool arrived = sources_[s].run.fate == PacketRun::Fate::kDelivered;
        if (arrived) std::memcpy(last, contributions[s] + begin * size, count * size);
        arrived_.push_back(last);
      }
      for (std::byte* result : results) outputs_.push_back(result + begin * size);
      reduce_in_rank_order(op, remembered.type, arrived_, outputs_, count);
    }
  }
}

}  // namespace droptest::comm
