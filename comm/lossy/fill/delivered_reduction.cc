// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/delivered_reduction.h"

#include <algorithm>
#include <cstring>

#include "comm/lossy/fill/device_reductions.h"
#include "comm/rank_order_reduction.h"
#include "sim/error.h"

namespace droptest::comm {

void DeliveredReduction::start(const sim::Packetizer& packets, int contributions) {
  start(packets, contributions, {0, packets.count_elems()});
}

void DeliveredReduction::start(const sim::Packetizer& packets, int contributions, sim::ElementRange part) {
  packets_ = packets;
  part_ = part;
  contributions_.assign(static_cast<std::size_t>(contributions), nullptr);
  results_.assign(static_cast<std::size_t>(contributions), {});
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
  DROPTEST_CHECK(part_.size() == packets_.count_elems(), "the last contributions of a part of a message");
  if (remembered.stream != nullptr) {
    return reduce_with_last_on_device(op, {packets_, part_, contributions_}, remembered, contributions, results);
  }
  lost_contributions_.start({packets_, part_}, contributions_);
  std::uint64_t done = part_.begin;
  while (lost_contributions_.next()) {
    const sim::ElementRange packet = packets_.elements(lost_contributions_.packet());
    const sim::ElementRange run{std::max(packet.begin, part_.begin), std::min(packet.end, part_.end)};
    reduce_run({{done, run.begin}, nullptr}, op, remembered, contributions, results);
    reduce_run({run, &lost_contributions_}, op, remembered, contributions, results);
    done = run.end;
  }
  reduce_run({{done, part_.end}, nullptr}, op, remembered, contributions, results);
}

void DeliveredReduction::reduce_run(const Run& run, ReduceOp op, Tensor remembered,
                                    std::span<const std::byte* const> contributions,
                                    std::span<std::byte* const> results) {
  const std::size_t size = element_bytes(remembered.type);
  const std::uint64_t block_elems = kReductionBlockBytes / size;
  for (std::uint64_t begin = run.elements.begin; begin < run.elements.end; begin += block_elems) {
    const std::uint64_t count = std::min(block_elems, run.elements.end - begin);
    inputs_.clear();
    outputs_.clear();
    for (std::size_t source = 0; source < contributions.size(); ++source) {
      std::byte* last = remembered.bytes.data() + (source * packets_.count_elems() + begin) * size;
      const bool arrived = run.lost == nullptr || run.lost->lost_by(source) == 0;
      if (arrived) std::memcpy(last, contributions[source] + begin * size, count * size);
      inputs_.push_back(last);
    }
    for (std::byte* result : results) outputs_.push_back(result + begin * size);
    reduce_in_rank_order(op, remembered.type, inputs_, outputs_, count);
  }
}

}  // namespace droptest::comm
