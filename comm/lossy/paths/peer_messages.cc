// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/peer_messages.h"

#include <array>

namespace droptest::comm {

PeerMessages::PeerMessages(const PathContext& context, std::uint64_t seed)
    : context_(context),
      transform_(context.network, seed),
      fates_(context),
      one_hop_(context, Consistency::kPerReceiver) {}

ConstTensor PeerMessages::outgoing(ConstTensor data, const Message& message, Scratch& scratch) {
  transform_.check(ReduceOp::kSum, data.type, message);
  if (transform_.is_identity()) return data;
  return transform_.transformed(data, std::array{data.count_elems()}, scratch);
}

void PeerMessages::sent(ConstTensor data, int destination, const Message& message) {
  fates_.sent(sim::Half::kGather, destination, data, message);
  context_.ledger.note_peer_message();
}

ConstTensor PeerMessages::before_receipt(Tensor data, const Message& message, Scratch& scratch) {
  transform_.check(ReduceOp::kSum, data.type, message);
  if (!keeps_own(context_.network.gather.fill)) return {data.type, {}};
  if (!transform_.is_identity()) transform_.forward(data, std::array{data.count_elems()});
  return one_hop_.keep_for_own(data, scratch);
}

void PeerMessages::received(Tensor data, ConstTensor own_values, int source, const Message& message) {
  const Tensor remembered = one_hop_.memory(StaleMemory::Use::kReceive, message, data, {}, source);
  const sim::PacketMask* lost = fates_.lost(sim::Half::kGather, source, data, message);
  context_.ledger.note_peer_message();
  one_hop_.fill(data, lost, fates_.packets(data), own_values, remembered);
  if (!transform_.is_identity()) transform_.inverse(data, std::array{data.count_elems()});
}

}  // namespace droptest::comm
