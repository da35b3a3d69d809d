// SPDX-License-Identifier: Apache-2.0
// In-network aggregation: all ranks miss a packet that one rank loses. Wraps any backend's own collective.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/lossy/fill/delivered_reduction.h"
#include "comm/lossy/fill/error_feedback.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/paths/message_losses.h"
#include "comm/lossy/paths/one_hop.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// A packet of a contribution travels on the link (source, every destination) to the aggregation point; lost, it is
/// missing from everyone's result, its sender's too. Each rank takes its losses out of what it hands to the backend's
/// own collective, so all ranks get equal bits; where the backend reduces parts by a reduction of ours as fast, sums
/// leave them out on the way, which is the same to the bit (but for the sign of zeros). Every rank draws the fates of
/// all contributions, or its own alone where it can look at those that the others have drawn. The gather half of an
/// all-reduce, where it is configured apart, is the way from the aggregation point, named by the group's lowest world
/// rank, to each receiver (that rank too). Reduction order: the backend's.
class ContributionPath final : public Path {
 public:
  explicit ContributionPath(const PathContext& context);

  void plan(const CallArguments& call, CallFates& fates) override;
  void run(const CallArguments& call, Communicator& inner, Scratch& scratch) override;
  std::vector<std::uint64_t> all_reduce_parts(std::uint64_t count_elems) override;

 private:
  class Part;
  // Whether the owners of parts leave out what is lost, instead of each rank in its contribution; then who knows the
  // fates: each rank its own, for the others to look at, or each those of all.
  enum class Parts : std::uint8_t { kNone, kOfShownFates, kOfDrawnFates };
  Parts parts_of(const CallArguments& call) const;
  // Whether the way of the results is configured.
  bool can_lose_results() const {
    return context_.network.gather.loss != nullptr || !context_.network.gather.links.empty();
  }
  void plan_contributions(const CallArguments& call, CallFates& fates);
  void plan_results(const CallArguments& call, CallFates& fates);
  ConstTensor arriving(const CallArguments& call, Tensor masked, Scratch& scratch);
  void all_reduce_in_parts(const CallArguments& call, Communicator& inner);
  void finish(Tensor results, std::uint64_t first_element, ReduceOp op);

  PathContext context_;
  OneHop one_hop_;
  std::uint16_t aggregation_point_;  // lowest world rank of the group
  DeliveredReduction delivered_;
  // Of the call at hand.
  sim::Packetizer packets_{0, 1, 1};
  Parts parts_ = Parts::kNone;
  MessageLosses lost_;            // of this rank's contribution, then of its result where the gather half can lose it
  MessageLosses lost_by_source_;  // of the others' contributions, where each rank draws those of all for parts
  LostContributions lost_contributions_;
  sim::PacketMask others_lost_;
  Tensor last_contributions_;  // of `stale`, else empty
  Tensor last_results_;
  ErrorFeedback feedback_;
};

}  // namespace droptest::comm
