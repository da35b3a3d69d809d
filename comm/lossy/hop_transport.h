// SPDX-License-Identifier: Apache-2.0
// One message from a rank to another under loss: the one place where the packets of a hop get lost.
#pragma once

#include <cstdint>

#include "comm/lossy/path.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// The sending and receiving ends of a group's hops. Both ends draw the same fates; the receiver counts them.
/// Ranks: each send() has its receive() on the destination, in the same order for a pair of ranks. The inner
/// communicator's send must buffer, as those of `local` and `gloo` do: in a round all ranks send before they receive.
class HopTransport {
 public:
  explicit HopTransport(const PathContext& context) : context_(context) {}

  /// Sends values to group rank `destination`. Blocking until they may be changed.
  void send(sim::Half half, int destination, ConstTensor values, const Message& message);

  /// Receives a message of group rank `source` whole, and returns which of its packets the network lost: null where all
  /// arrived. What is lost must not be used. The mask is valid until the next call.
  const sim::PacketMask* receive(sim::Half half, int source, Tensor values, const Message& message);

  /// How a message of those elements is cut.
  sim::Packetizer packets(ConstTensor values) const;

  /// Long-run fraction of the packets of such messages from group rank `source` that stays missing.
  double missing_rate(sim::Half half, int source, ConstTensor values, const Message& message) const;

 private:
  sim::Link link(sim::Half half, int source, int destination, const Message& message) const;

  PathContext context_;
};

}  // namespace droptest::comm
