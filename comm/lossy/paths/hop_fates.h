// SPDX-License-Identifier: Apache-2.0
// What becomes of a message from a rank to another under loss: the one place where the packets of a hop get lost.
#pragma once

#include <cstdint>

#include "comm/lossy/paths/path.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// The two ends of a group's hops, whose values the reliable inner communicator moves: both ends use up the same
/// packets, and the receiver counts what was lost of them.
/// Ranks: each sent() has its lost() on the destination, in the same order for a pair of ranks.
class HopFates {
 public:
  explicit HopFates(const PathContext& context) : context_(context) {}

  /// Values have gone to group rank `destination`.
  void sent(sim::Half half, int destination, ConstTensor values, const Message& message);

  /// Values have come whole from group rank `source`: which of their packets the network lost, null where all arrived.
  /// What is lost must not be used. The mask is valid until the next call.
  const sim::PacketMask* lost(sim::Half half, int source, ConstTensor values, const Message& message);

  /// How a message of those elements is cut.
  sim::Packetizer packets(ConstTensor values) const;

  /// Long-run fraction of the packets of such messages from group rank `source` that stays missing.
  double missing_rate(sim::Half half, int source, ConstTensor values, const Message& message) const;

 private:
  sim::Link link(sim::Half half, int source, int destination, const Message& message) const;

  PathContext context_;
};

}  // namespace droptest::comm
