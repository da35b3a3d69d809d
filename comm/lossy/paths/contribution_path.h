// SPDX-License-Identifier: Apache-2.0
// In-network aggregation: all ranks miss a packet that one rank loses. Wraps any backend's own collective.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/lossy/fill/delivered_reduction.h"
#include "comm/lossy/fill/error_feedback.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/paths/call_memory.h"
#include "comm/lossy/paths/gather_half.h"
#include "comm/lossy/paths/message_losses.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// A packet of a contribution travels on the link (source, every destination) to the aggregation point. A lost packet
/// is missing from every rank's result, also from its sender's. Each rank takes its lost packets out of the
/// contribution that it hands to the backend's own collective, so all ranks get equal bits. If the backend runs a
/// PartReduction as fast as its own reduction, the sums leave the lost packets out instead; the results are equal to
/// the bit (but for the sign of zeros). Every rank draws the fates of all contributions, or only of its own if it can
/// read the fates that the others drew. The gather half of an all-reduce, if the spec configures it, covers the links
/// from the aggregation point to each receiver. The group's lowest world rank names the aggregation point, and is a
/// receiver too. Reduction order: the backend's.
class ContributionPath final : public Path {
 public:
  explicit ContributionPath(const PathContext& context);
  /// PathEntry::add_memory.
  static void add_memory(const SizedCall& call, CallMemory& memory);

  void plan(const CallArguments& call, CallFates& fates) override;
  void run(const CallArguments& call, Communicator& inner, Scratch& scratch) override;

 private:
  class Part;
  // kNone: each rank takes the lost packets out of its contribution. The others: the owners of parts leave the lost
  // packets out. With kOfShownFates, each rank draws the fates of its own contribution and shows them to the others;
  // with kOfDrawnFates, each rank draws the fates of all contributions.
  enum class Parts : std::uint8_t { kNone, kOfShownFates, kOfDrawnFates };
  Parts parts_of(const CallArguments& call) const;
  // Whether the spec configures the gather half, the links of the results.
  bool can_lose_results() const {
    return context_.network.gather.loss != nullptr || !context_.network.gather.links.empty();
  }
  void plan_messages(const CallArguments& call, CallFates& fates);
  void take_other(const CallArguments& call, const PathMessage& message, CallFates& fates);
  ConstTensor arriving(const CallArguments& call, Tensor masked, Scratch& scratch);
  void all_reduce_in_parts(const CallArguments& call, Communicator& inner);
  void report_lost(std::vector<sim::ElementRange>& lost) const;
  void finish(Tensor results, std::uint64_t first_element, ReduceOp op);

  PathContext context_;
  PathMessages messages_;
  GatherHalf gather_half_;
  DeliveredReduction delivered_;
  // State of the current call.
  sim::Packetizer packets_{0, 1, 1};
  Parts parts_ = Parts::kNone;
  MessageLosses lost_;  // losses of this rank's contribution, then of its result if the gather half can lose it
  MessageLosses lost_by_source_;  // losses of the others' contributions, under kOfDrawnFates
  LostContributions lost_contributions_;
  sim::PacketMask others_lost_;
  sim::PacketMask without_others_;  // packets that no other rank contributed; for Message::lost
  Tensor last_contributions_;       // memory of `stale`; empty under other fills
  Tensor last_results_;
  ErrorFeedback feedback_;
};

}  // namespace droptest::comm
