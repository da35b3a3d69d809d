// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/delivered_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "comm/rank_order_reduction.h"

namespace droptest::comm {
namespace {

// Stays in the first-level cache between its steps.
constexpr std::size_t kBlockBytes = 8192;

}  // namespace

void DeliveredReduction::start(const sim::Packetizer& packets, int contributions) {
  packets_ = packets;
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

// The message is walked in runs within which the same contributions are missing.
template <class ReduceRun>
void DeliveredReduction::walk(const ReduceRun& reduce_run) {
  sources_.clear();
  for (std::size_t s = 0; s < masks_.size(); ++s) {
    sources_.push_back({PacketRunCursor(lost_of(static_cast<int>(s)), packets_), {}});
  }
  for (std::uint64_t begin = 0; begin < packets_.count_elems();) {
    std::uint64_t end = packets_.count_elems();
    for (Source& source : sources_) {
      if (source.run.elements.end == begin) source.cursor.next(source.run);
      end = std::min(end, source.run.elements.end);
    }
    reduce_run(sim::ElementRange{begin, end});
    begin = end;
  }
}

void DeliveredReduction::reduce(ReduceOp op, ElementType type, const Scaling& scaling,
                                std::span<const std::byte* const> contributions, std::span<std::byte* const> results) {
  walk([&](sim::ElementRange run) { reduce_run(op, type, scaling, run, contributions, results); });
}

void DeliveredReduction::reduce_with_last(ReduceOp op, Tensor remembered,
                                          std::span<const std::byte* const> contributions,
                                          std::span<std::byte* const> results) {
  const std::size_t size = element_bytes(remembered.type);
  const std::uint64_t block_elems = kBlockBytes / size;
  walk([&](sim::ElementRange run) {
    for (std::uint64_t begin = run.begin; begin < run.end; begin += block_elems) {
      const std::uint64_t count = std::min(block_elems, run.end - begin);
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
  });
}

// A run of which nothing is missing goes straight to the results; others by way of a block.
void DeliveredReduction::reduce_run(ReduceOp op, ElementType type, const Scaling& scaling, sim::ElementRange elements,
                                    std::span<const std::byte* const> contributions,
                                    std::span<std::byte* const> results) {
  const auto is_missing = [](const Source& source) { return source.run.fate == PacketRun::Fate::kLost; };
  const std::size_t size = element_bytes(type);
  if (scaling.contributions == 1 && std::none_of(sources_.begin(), sources_.end(), is_missing)) {
    arrived_.clear();
    outputs_.clear();
    for (const std::byte* contribution : contributions) arrived_.push_back(contribution + elements.begin * size);
    for (std::byte* result : results) outputs_.push_back(result + elements.begin * size);
    return reduce_in_rank_order(op, type, arrived_, outputs_, elements.size());
  }
  block_.resize(kBlockBytes);
  for (std::uint64_t begin = elements.begin; begin < elements.end; begin += kBlockBytes / size) {
    const std::uint64_t count = std::min<std::uint64_t>(kBlockBytes / size, elements.end - begin);
    const Tensor block(type, std::span(block_).first(count * size));
    reduce_block(op, scaling, begin * size, block, contributions);
    for (std::byte* result : results) std::memcpy(result + begin * size, block.bytes.data(), block.bytes.size());
  }
}

void DeliveredReduction::reduce_block(ReduceOp op, const Scaling& scaling, std::size_t offset_bytes, Tensor block,
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
