// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter by direct exchange, then all-gather: every packet travels from one rank to one other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/lossy/compression/value_coder.h"
#include "comm/lossy/fill/delivered_reduction.h"
#include "comm/lossy/fill/ef21.h"
#include "comm/lossy/fill/error_feedback.h"
#include "comm/lossy/loss_selection.h"
#include "comm/lossy/paths/call_memory.h"
#include "comm/lossy/paths/gather_half.h"
#include "comm/lossy/paths/losses_by_rank.h"
#include "comm/lossy/paths/message_losses.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// Rank r owns part r of a reduction. It receives each other contribution over the link (source, r), sums the arrived
/// packets in rank order, and sends the result to all other ranks over the links (r, receiver). Its own contribution
/// never travels.
/// A compression of values codes the contributions to other ranks' parts and the results; the owner adds up decoded
/// values. The own contribution does not travel and stays exact. A sender with error feedback also remembers the
/// differences between its contributions and their decoded values, and an owner those of its results. Under EF21 the
/// coded contributions are differences from states; an owner adds them to its copies, and sums the copies. Results are
/// coded as they are.
/// Reduction order: by rank, so that without loss the bits are those of the `local` backend.
/// Source: transpose all-reduce of OptiReduce, NSDI 2025; docs/paths.md.
class DirectPath final : public Path {
 public:
  explicit DirectPath(const PathContext& context);
  /// PathEntry::add_memory.
  static void add_memory(const SizedCall& call, CallMemory& memory);

  void plan(const CallArguments& call, CallFates& fates) override;
  void run(const CallArguments& call, Communicator& inner, Scratch& scratch) override;
  CodingErrors coding_errors() const override { return coder_ ? coder_->errors() : CodingErrors{}; }
  EndErrors compare_ends(Communicator& inner) override;

 private:
  class Part;  // the reduction of this rank's part
  /// The rank that takes the lost packets out of the results: the owner of each part for all receivers, or each
  /// receiver for itself.
  enum class LostResults : std::uint8_t { kByOwner, kByReceiver };

  void plan_messages(const CallArguments& call, CallFates& fates);
  void note_undelivered(ConstTensor sent);
  void plan_codes(const CallArguments& call);
  ConstTensor coded_contribution(ConstTensor values, Scratch& scratch);
  void code_results(Tensor results, ReduceOp op);
  void run_with_states(const CallArguments& call, Communicator& inner, Scratch& scratch);
  void change_estimates(ConstTensor sent, Communicator& inner);
  void reduce_part(const Part& part, std::span<const std::byte* const> contributions,
                   std::span<std::byte* const> results, std::span<const PartReduction* const> reductions);
  static const Part& part_of(const PartReduction& reduction);
  void lose_results(std::span<const PartReduction* const> reductions);
  bool owners_lose_results(const CallArguments& call) const;

  PathContext context_;
  PathMessages messages_;
  GatherHalf gather_half_;
  DeliveredReduction delivered_;
  LargestNorm adversary_;
  // State of the current call.
  std::vector<std::uint64_t> counts_;  // elements of the parts, by rank
  sim::Packetizer own_part_{0, 1, 1};  // the packets of this rank's part
  MessageLosses lost_contributions_;   // losses of contributions to this rank's part, by source
  MessageLosses lost_outgoing_;        // losses of this rank's contributions, by owner, under error feedback
  LossesByRank lost_results_;          // losses of results by owner, under LostResults::kByOwner
  LostResults lost_results_by_ = LostResults::kByReceiver;
  Tensor remembered_;  // each source's last values, one after the other; empty if the fill does not need them
  ErrorFeedback feedback_;
  Ef21 states_;
  std::optional<ValueCoder> coder_;  // absent: values travel as they are
};

}  // namespace droptest::comm
