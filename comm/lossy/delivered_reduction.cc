// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/delivered_reduction.h"

#include <algorithm>
#include <array>
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
  masks_.resize(static_cast<std::size_t>(contributions));
  for (sim::PacketMask& mask : masks_) mask.resize(0);
}

void DeliveredReduction::lose(int source, const sim::PacketMask* lost) {
  if (lost != nullptr) masks_[static_cast<std::size_t>(source)] = *lost;
}

const sim::PacketMask* DeliveredReduction::lost_of(int source) const {
  const sim::PacketMask& mask = masks_[static_cast<std::size_t>(source)];
  return mask.size() == 0 ? nullptr : &mask;
}

void DeliveredReduction::begin_walk() {
  run_ = {part_.begin, part_.begin};
  sources_.clear();
  if (part_.size() == 0) return;
  const std::uint64_t first = packets_.packet_of(part_.begin);
  for (std::size_t s = 0; s < masks_.size(); ++s) {
    sources_.push_back({PacketRunCursor(lost_of(static_cast<int>(s)), packets_, first), {run_}});
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

bool DeliveredReduction::run_is_whole() const {
  return std::none_of(sources_.begin(), sources_.end(),
                      [](const Source& source) { return source.run.fate == PacketRun::Fate::kLost; });
}

// All contributions stream by as if nothing were missing, so that memory is read in long stretches; where something is,
// the sum is made again from the caches.
void DeliveredReduction::reduce(ReduceOp op, ConstTensor like, const Scaling& scaling,
                                std::span<const std::byte* const> contributions, std::span<std::byte* const> results) {
  const ElementType type = like.type;
  if (like.stream != nullptr) {
    const HoleRules rules{
        scaling.contributions, scaling.exempt,
        scaling.sums == Scaling::Sums::kByCount ? HoleRules::Sums::kByCount : HoleRules::Sums::kAsTheyAre};
    return reduce_delivered_on_device(op, type, {packets_, part_, masks_}, rules, contributions, results, *like.stream);
  }
  const std::size_t size = element_bytes(type);
  begin_walk();
  next_run();
  const ChangeBlock mend = [&](std::uint64_t first_element, Tensor block) {
    const std::uint64_t block_begin = part_.begin + first_element;
    const std::uint64_t end = block_begin + block.count_elems();
    for (std::uint64_t begin = block_begin; begin < end;) {
      if (run_.end == begin) next_run();
      const std::uint64_t part_end = std::min(run_.end, end);
      if (scaling.contributions != 1 || !run_is_whole()) {
        const Tensor sums(type, block.bytes.subspan((begin - block_begin) * size, (part_end - begin) * size));
        reduce_run(op, scaling, (begin - part_.begin) * size, sums, contributions);
      }
      begin = part_end;
    }
  };
  reduce_in_rank_order(op, type, contributions, results, part_.size(), mend);
}

void DeliveredReduction::reduce_with_last(ReduceOp op, Tensor remembered,
                                          std::span<const std::byte* const> contributions,
                                          std::span<std::byte* const> results) {
  if (remembered.stream != nullptr) {
    return reduce_with_last_on_device(op, {packets_, part_, masks_}, remembered, contributions, results);
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

void DeliveredReduction::reduce_run(ReduceOp op, const Scaling& scaling, std::size_t offset_bytes, Tensor block,
                                    std::span<const std::byte* const> contributions) {
  const std::size_t bytes = block.bytes.size();
  arrived_.clear();
  if (sources_[0].run.fate == PacketRun::Fate::kLost) {
    left_out_.resize(kBlockBytes);
    const Tensor left_out(block.type, std::span(left_out_).first(bytes));
    set_left_out(left_out, op);
    arrived_.push_back(left_out.bytes.data());
  }
  std::uint64_t missing = 0;
  scaled_.resize(scaling.contributions == 1 ? 0 : kBlockBytes * sources_.size());
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    if (sources_[s].run.fate == PacketRun::Fate::kLost) {
      ++missing;
      continue;
    }
    const std::byte* contribution = contributions[s] + offset_bytes;
    if (scaling.contributions != 1 && static_cast<int>(s) != scaling.exempt) {
      const Tensor scaled(block.type, std::span(scaled_).subspan(s * kBlockBytes, bytes));
      std::memcpy(scaled.bytes.data(), contribution, bytes);
      scale(scaled, scaling.contributions);
      contribution = scaled.bytes.data();
    }
    arrived_.push_back(contribution);
  }
  const std::array<std::byte*, 1> outputs = {block.bytes.data()};
  reduce_in_rank_order(op, block.type, arrived_, outputs, block.count_elems());
  if (scaling.sums == Scaling::Sums::kAsTheyAre || missing == 0) return;
  const auto all = static_cast<std::uint64_t>(sources_.size());
  if (missing == all) {
    std::memset(block.bytes.data(), 0, bytes);
  } else {
    scale(block, static_cast<double>(all) / static_cast<double>(all - missing));
  }
}

}  // namespace droptest::comm
