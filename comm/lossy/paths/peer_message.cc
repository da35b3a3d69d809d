// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/peer_message.h"

#include <array>
#include <vector>

#include "comm/lossy/fill/packet_runs.h"
#include "sim/error.h"

namespace droptest::comm {

PeerMessage::PeerMessage(const PathContext& context, std::uint64_t seed)
    : context_(context), transform_(context.network, seed), gather_half_(context) {}

void PeerMessage::plan(const CallArguments& call, CallFates& fates) {
  const bool sends = call.operation == Operation::kSend;
  DROPTEST_CHECK(sends || call.operation == Operation::kRecv, "a call that is no message");
  const ConstTensor data = sends ? call.input : call.output;
  transform_.check(ReduceOp::kSum, data.type, call.message);
  const int me = context_.group.rank();
  const sim::Packetizer packets = context_.packets(data.type, data.count_elems());
  const auto link = [&](int source, int destination) {
    return context_.link(call.message.traffic_class, sim::Half::kGather, source, destination);
  };
  if (sends) return context_.ledger.pass_message(fates, link(me, call.peer), packets);
  lost_.draw(context_.ledger, fates, link(call.peer, me), packets, Tally::kCounted, 0);
}

ConstTensor PeerMessage::outgoing(ConstTensor data, Scratch& scratch) {
  if (transform_.is_identity()) return data;
  return transform_.transformed(data, std::array{data.count_elems()}, scratch);
}

void PeerMessage::before_receipt(Tensor data, Scratch& scratch) {
  own_values_ = {data.type, {}};
  if (!context_.network.gather.rule().keeps_own()) return;
  if (!transform_.is_identity()) transform_.forward(data, std::array{data.count_elems()});
  own_values_ = gather_half_.keep_for_own(data, scratch);
}

// The memory is looked up now: another message of the name may have arrived since the plan.
void PeerMessage::received(const CallArguments& call, Scratch& scratch) {
  const Tensor data = call.output;
  const ConstTensor substitute = call.message.substitute;
  if (context_.network.gather.rule().source == FillRule::Source::kSubstitute && !substitute.bytes.empty()) {
    DROPTEST_CHECK(substitute.count_elems() == data.count_elems() && substitute.type == data.type,
                   "a substitute of another shape than its message");
    own_values_ = outgoing(substitute, scratch);
  }
  const Tensor remembered = gather_half_.memory(StaleMemory::Use::kReceive, call.message, data, {}, call.peer);
  const sim::Packetizer packets = context_.packets(data.type, data.count_elems());
  gather_half_.fill(data, lost_.of(0), packets, own_values_, remembered);
  std::vector<sim::ElementRange>* const lost = call.message.lost;
  if (lost != nullptr) append_lost(lost_.of(0), packets, 0, *lost);
  if (transform_.is_identity()) return;
  transform_.inverse(data, std::array{data.count_elems()});
  if (lost != nullptr) transform_.inverse(*lost, data.type, std::array{data.count_elems()});
}

}  // namespace droptest::comm
