// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/hop_fates.h"

namespace droptest::comm {

sim::Packetizer HopFates::packets(ConstTensor values) const {
  return {values.count_elems(), element_bytes(values.type), context_.network.payload_bytes};
}

sim::Link HopFates::link(sim::Half half, int source, int destination, const Message& message) const {
  return {message.traffic_class, half, static_cast<std::uint16_t>(context_.inner.world_rank(source)),
          static_cast<std::uint16_t>(context_.inner.world_rank(destination))};
}

double HopFates::missing_rate(sim::Half half, int source, ConstTensor values, const Message& message) const {
  return context_.ledger.missing_rate(link(half, source, context_.inner.rank(), message), packets(values).packets());
}

void HopFates::sent(sim::Half half, int destination, ConstTensor values, const Message& message) {
  context_.ledger.pass_message(link(half, context_.inner.rank(), destination, message), context_.group,
                               packets(values));
}

const sim::PacketMask* HopFates::lost(sim::Half half, int source, ConstTensor values, const Message& message) {
  return context_.ledger.next_message(link(half, source, context_.inner.rank(), message), context_.group,
                                      packets(values), Tally::kCounted);
}

}  // namespace droptest::comm
