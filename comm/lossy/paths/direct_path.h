// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter by direct exchange, then all-gather: every packet travels from one rank to one other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/lossy/fill/delivered_reduction.h"
#include "comm/lossy/paths/losses_by_rank.h"
#include "comm/lossy/paths/one_hop.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// Part r of a reduction is owned by rank r, who gets every contribution over the link (source, r), sums what arrived
/// in rank order and sends the result to all over the links (r, receiver). Its own contribution never travels.
/// Reduction order: by rank, so that without loss the bits are those of the `local` backend.
/// Source: transpose all-reduce of OptiReduce, NSDI 2025; docs/paths.md.
class DirectPath final : public Path {
 public:
  explicit DirectPath(const PathContext& context);

  void all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) override;
  void reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                      const Message& message) override;
  void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                  const Message& message) override;
  void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                  std::span<const std::uint64_t> receive_counts, const Message& message) override;
  void broadcast(Tensor data, int root, const Message& message) override;
  std::vector<std::uint64_t> all_reduce_parts(std::uint64_t count_elems) override;

 private:
  class Part;  // what this rank makes of its part

  void reduce_part(const Part& part, std::span<const std::byte* const> contributions,
                   std::span<std::byte* const> results, std::span<const PartReduction* const> reductions);
  static const Part& part_of(const PartReduction& reduction);
  void lose_results(std::span<const PartReduction* const> reductions);
  bool owners_lose_results(ConstTensor input) const;
  Tensor remembered_contributions(StaleMemory::Use use, ConstTensor like, std::span<const std::uint64_t> counts,
                                  const Message& message);
  void draw_contributions(const sim::Packetizer& packets, const Message& message);
  const sim::PacketMask* fates_of_contribution(int source, const sim::Packetizer& packets, const Message& message);
  void draw_outgoing(ConstTensor sent, std::span<const std::uint64_t> counts, const Message& message);
  ConstTensor corrected(ConstTensor input, ReduceOp op, StaleMemory::Use use, std::span<const std::uint64_t> counts,
                        const Message& message);

  PathContext context_;
  OneHop one_hop_;
  DeliveredReduction delivered_;
  std::vector<sim::PacketMask> lost_contributions_;  // to the current part, by source; empty: all arrived
  LossesByRank lost_results_;                        // of the current all-reduce, by owner, where owners take them out
  LargestNorm adversary_;
  std::vector<std::uint64_t> part_counts_;  // of the current all-reduce, by rank
};

}  // namespace droptest::comm
