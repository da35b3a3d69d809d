// SPDX-License-Identifier: Apache-2.0
// The gather half that paths share: values that go one hop from the rank that has them to those that want them.
#pragma once

#include <cstdint>
#include <span>

#include "comm/lossy/paths/losses_by_rank.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// Moves values over the inner communicator, then takes out of each receiver's copy what its links lost, and fills the
/// holes by the gather half's fill. Links: a packet for one receiver travels on (source, destination); a packet for all
/// on one such link per receiver, or with shared fates on (source, every destination).
///
/// A rank's own value never travels, so it is never lost. With shared fates a source gives up what its receivers lost
/// (except under the fill `own`), so that all ranks end with the same values.
class OneHop {
 public:
  OneHop(const PathContext& context, Consistency consistency) : context_(context), consistency_(consistency) {}

  void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, const Message& message);
  void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                  std::span<const std::uint64_t> receive_counts, const Message& message);
  void broadcast(Tensor data, int root, const Message& message);

  /// The gather half of an all-reduce whose results are in `output` already: takes out what this rank's links lost of
  /// them, as all_gather does. `own` keeps `own_values`, which has the shape of the output and does not overlap it.
  void lose_results(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values,
                    const Message& message);

  /// The same known beforehand, for owners that zero what is lost themselves: what this rank loses of each part. With
  /// shared fates it is known to the owner of a part alone, and holds for all ranks.
  void draw_results(ElementType type, std::span<const std::uint64_t> counts, const Message& message,
                    LossesByRank& lost);

  /// What `own` needs to keep of `values` before they are overwritten: a copy in scratch where that fill is in use and
  /// something can be lost, else an empty tensor.
  ConstTensor keep_for_own(ConstTensor values) { return keep_for_own(values, context_.scratch); }
  ConstTensor keep_for_own(ConstTensor values, Scratch& scratch) { return copy_for_own(values, scratch); }
  /// The same of an input to a reduction: `own_scaled` multiplies it by sqrt(ranks) in sums of floats.
  ConstTensor keep_contribution(ConstTensor input, ReduceOp op);

  /// Fills the holes of `data`. Null `lost`: all arrived. `own_values` and `memory` have the shape of `data`, or are
  /// empty where the fill does not need them.
  void fill(Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets, ConstTensor own_values,
            Tensor memory) const;
  /// The memory of `stale` for a message that is cut so, or an empty tensor under other fills.
  Tensor memory(StaleMemory::Use use, const Message& message, ConstTensor values, std::span<const std::uint64_t> cut,
                int peer = -1);

 private:
  Tensor copy_for_own(ConstTensor values, Scratch& scratch);
  void lose_parts(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values, Tensor memory,
                  const Message& message);
  void lose_parts_on_device(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values, Tensor memory,
                            const Message& message);
  const sim::PacketMask* fates_of_copy(int source, const sim::Packetizer& packets, const Message& message);
  sim::Packetizer packets(ConstTensor data) const;
  sim::Link link_to_all(int source, const Message& message) const;
  sim::Link link(int source, int destination, const Message& message) const;

  PathContext context_;
  Consistency consistency_;
};

}  // namespace droptest::comm
