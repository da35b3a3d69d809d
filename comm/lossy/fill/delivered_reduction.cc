// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/delivered_reduction.h"

#include <algorithm>
#include <cstring>

#include "comm/lossy/fill/device_reductions.h"
#include "comm/rank_order_reduction.h"
#include "sim/error.h"

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
  contributions_.assign(static_cast<std::size_t>(contributions), nullptr);
  results_.assign(static_cast<std::size_t>(contributions), {});
}

void DeliveredReduction::begin_walk() {
  run_ = {part_.begin, part_.begin};
  sources_.clear();
  if (part_.size() == 0) return;
  const std::uint64_t first = packets_.packet_of(part_.begin);
  for (const sim::PacketMask* lost : contributions_) {
    sources_.push_back({PacketRunCursor(lost, packets_, first), {run_}});
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

void DeliveredReduction::reduce(ReduceOp op, ConstTensor like, const Scaling& scaling,
                                std::span<const std::byte* const> contributions, std::span<std::byte* const> results) {
  const ElementType type = like.type;
  DROPTEST_CHECK(scaling.substitute < 0 || op == ReduceOp::kMean, "a contribution that stands for others in a sum");
  if (like.stream != nullptr) {
    return reduce_delivered_on_device(op, type, {packets_, part_, contributions_}, scaling, contributions, results,
                                      *like.stream);
  }
  gaps_.start(op, type, scaling, {packets_, part_}, contributions_, results_, contributions);
  reduce_in_rank_order(op, type, contributions, results, part_.size(), gaps_);
}

void DeliveredReduction::reduce_with_last(ReduceOp op, Tensor remembered,
                                          std::span<const std::byte* const> contributions,
                                          std::span<std::byte* const> results) {
  if (remembered.stream != nullptr) {
    return reduce_with_last_on_device(op, {packets_, part_, contributions_}, remembered, contributions, results);
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
