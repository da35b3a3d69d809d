// SPDX-License-Identifier: Apache-2.0
// In-network aggregation: what one rank's packet loses, all ranks miss. Wraps any backend's own collective.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/lossy/fill/delivered_reduction.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/paths/one_hop.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// A packet of a contribution travels on the link (source, every destination) to the aggregation point; lost, it is
/// missing from everyone's result, its sender's too. Each rank takes its losses out of what it hands to the backend's
/// own collective, so all ranks get equal bits; where the backend reduces in place, sums leave them out on the way,
/// which is the same to the bit (but for the sign of zeros). There each rank draws the fates of its own contribution,
/// and the others look at them; elsewhere every rank draws those of all. The gather half of an all-reduce, where it is
/// configured apart, is the way from the aggregation point, named by the group's lowest world rank, to each receiver
/// (that rank too). Reduction order: the backend's.
class ContributionPath final : public Path {
 public:
  explicit ContributionPath(const PathContext& context);

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
  struct Uses {
    StaleMemory::Use stale;
    StaleMemory::Use feedback;
    std::span<const std::uint64_t> cut;  // of the message into the parts of ranks
  };
  ConstTensor what_arrives(ConstTensor input, Tensor masked, ReduceOp op, const sim::Packetizer& packets, Uses uses,
                           const Message& message);
  class Part;
  bool reduces_in_parts(ReduceOp op) const;
  void all_reduce_in_parts(ConstTensor input, Tensor output, const sim::Packetizer& packets, const Message& message);
  sim::Link link_of_contribution(int source, const Message& message) const;
  const sim::PacketMask* fates_of_contribution(int source, const sim::Packetizer& packets, const Message& message);
  void finish(Tensor results, std::uint64_t first_element, ReduceOp op, const sim::Packetizer& packets);
  const sim::PacketMask* fates_of_results(const sim::Packetizer& packets, const Message& message);

  PathContext context_;
  OneHop one_hop_;
  LostContributions lost_contributions_;
  DeliveredReduction delivered_;
  sim::PacketMask own_lost_;         // of this rank's contribution to the current all-reduce in parts
  std::uint16_t aggregation_point_;  // lowest world rank of the group
};

}  // namespace droptest::comm
