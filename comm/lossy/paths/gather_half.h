// SPDX-License-Identifier: Apache-2.0
// The gather half that paths share: values that travel one hop from their source to their receivers.
#pragma once

#include <cstdint>
#include <span>

#include "comm/lossy/paths/message_losses.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// Moves values over the inner communicator, then takes out of each receiver's copy the packets that its links lost,
/// and fills their elements by the gather half's fill. Links: a packet for one receiver travels on (source,
/// destination); a packet for all travels on one such link per receiver, or on (source, every destination) if fates are
/// shared.
///
/// A rank's own value never travels, so it is never lost. If fates are shared, a source also loses the packets that its
/// receivers lost (except under the fills `own` and `own_scaled`), so that all ranks end with the same values.
class GatherHalf {
 public:
  explicit GatherHalf(const PathContext& context) : context_(context) {}

  /// Path::plan() and run() of an all_gather, an all_to_all or a broadcast with these messages.
  void plan(const CallArguments& call, PathMessages& messages, CallFates& fates);
  void run(const CallArguments& call, Communicator& inner, Scratch& scratch);

  /// The gather half of an all-reduce, in three steps: start_results(), take() of each message, lose_results() of the
  /// results in `output`. The last step takes out the packets that this rank's links lost, as all_gather does. The fill
  /// `own` puts `own_values` in their place; `own_values` has the shape of the output and does not overlap it. The
  /// first and the last step get the same counts. take() draws the fates of messages that others send to all ranks only
  /// if `of_others` asks for them.
  void start_results(const CallArguments& call, std::span<const std::uint64_t> counts);
  void take(const CallArguments& call, const PathMessage& message, CallFates& fates,
            Interest of_others = Interest::kFates);
  void lose_results(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values) const;
  /// The packets that this rank loses of a source's message; null: none.
  const sim::PacketMask* lost_of(int source) const { return lost_.of(static_cast<std::size_t>(source)); }

  /// A copy of `values` in scratch, taken before they are overwritten, if the fill is `own` or `own_scaled` and packets
  /// can be lost; else an empty tensor.
  ConstTensor keep_for_own(ConstTensor values, Scratch& scratch) { return copy_for_own(values, scratch); }
  /// keep_for_own() for an input to a reduction: `own_scaled` multiplies it by sqrt(ranks) for a sum of floats, and
  /// divides it by sqrt(ranks) for a mean.
  ConstTensor keep_contribution(ConstTensor input, ReduceOp op, Scratch& scratch);

  /// Fills the holes of `data`. Null `lost`: all arrived. `own_values` and `memory` have the shape of `data`, or are
  /// empty if the fill does not need them.
  void fill(Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets, ConstTensor own_values,
            Tensor memory) const;
  /// The memory of `stale` for a message with this cut, or an empty tensor under other fills.
  Tensor memory(StaleMemory::Use use, const Message& message, ConstTensor values, std::span<const std::uint64_t> cut,
                int peer = -1);

 private:
  Tensor copy_for_own(ConstTensor values, Scratch& scratch);
  /// Sets Message::lost of the call.
  void report_lost(const CallArguments& call, std::span<const std::uint64_t> counts) const;
  void lose_on_device(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values) const;

  PathContext context_;
  // State of the current call.
  MessageLosses lost_;  // losses by source
  Tensor remembered_;
};

}  // namespace droptest::comm
