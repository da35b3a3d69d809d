// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/one_hop.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "comm/device/tensor_operations.h"
#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/fill/reduction_fill.h"

namespace droptest::comm {
namespace {

Tensor slice_if_any(Tensor data, sim::ElementRange elements) {
  return data.bytes.empty() ? data : slice(data, elements);
}
ConstTensor slice_if_any(ConstTensor data, sim::ElementRange elements) {
  return data.bytes.empty() ? data : slice(data, elements);
}

}  // namespace

Tensor OneHop::copy_for_own(ConstTensor values, Scratch& scratch) {
  if (!can_lose(context_.network.gather) || !keeps_own(context_.network.gather.fill)) return {values.type, {}};
  const Tensor kept = scratch.take(Scratch::Slot::kInputCopy, values, values.count_elems());
  copy(values, kept);
  return kept;
}

ConstTensor OneHop::keep_contribution(ConstTensor input, ReduceOp op) {
  const Tensor kept = copy_for_own(input, context_.scratch);
  const bool is_sum = op == ReduceOp::kSum && input.type != ElementType::kUint64;
  if (is_sum && !kept.bytes.empty() && context_.network.gather.fill == Fill::kOwnScaled) {
    scale(kept, std::sqrt(static_cast<double>(context_.inner.world_size())));
  }
  return kept;
}

Tensor OneHop::memory(StaleMemory::Use use, const Message& message, ConstTensor values,
                      std::span<const std::uint64_t> cut, int peer) {
  if (!can_lose(context_.network.gather) || context_.network.gather.fill != Fill::kStale) return {values.type, {}};
  return context_.stale.of(use, message, values, values.count_elems(), cut, peer);
}

void OneHop::fill(Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets, ConstTensor own_values,
                  Tensor memory) const {
  if (!memory.bytes.empty()) {
    copy_delivered(data, memory, lost, packets);
    copy_lost(memory, data, lost, packets);
  } else if (!own_values.bytes.empty()) {
    copy_lost(own_values, data, lost, packets);
  } else {
    zero_lost(data, lost, packets);
  }
}

sim::Packetizer OneHop::packets(ConstTensor data) const {
  return {data.count_elems(), element_bytes(data.type), context_.network.payload_bytes};
}

sim::Link OneHop::link(int source, int destination, const Message& message) const {
  return {message.traffic_class, sim::Half::kGather, static_cast<std::uint16_t>(context_.inner.world_rank(source)),
          static_cast<std::uint16_t>(context_.inner.world_rank(destination))};
}

sim::Link OneHop::link_to_all(int source, const Message& message) const {
  sim::Link to_all = link(source, source, message);
  to_all.destination = sim::Link::kEveryDestination;
  return to_all;
}

// What this rank lost of a message that `source` sends to all: its receivers draw the link that they count, the source
// draws those of all its receivers and loses nothing.
const sim::PacketMask* OneHop::fates_of_copy(int source, const sim::Packetizer& packets, const Message& message) {
  const int me = context_.inner.rank();
  if (consistency_ == Consistency::kShared) {
    const sim::PacketMask* lost = context_.ledger.next_message(link_to_all(source, message), context_.group, packets,
                                                               source == me ? Tally::kCounted : Tally::kOtherEnd);
    return source == me && keeps_own(context_.network.gather.fill) ? nullptr : lost;
  }
  if (source != me) {
    return context_.ledger.next_message(link(source, me, message), context_.group, packets, Tally::kCounted);
  }
  for (int destination = 0; destination < context_.inner.world_size(); ++destination) {
    if (destination == me) continue;
    context_.ledger.pass_message(link(me, destination, message), context_.group, packets);
  }
  return nullptr;
}

// The holes of all parts are filled together, so that a device is given one launch for them, not one for each source.
void OneHop::lose_parts_on_device(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values,
                                  Tensor memory, const Message& message) {
  std::vector<ElementRun> lost_runs;
  std::vector<ElementRun> delivered_runs;
  std::uint64_t begin = 0;
  for (int source = 0; source < context_.inner.world_size(); ++source) {
    const sim::ElementRange elements{begin, begin + counts[source]};
    begin = elements.end;
    const sim::Packetizer cut = packets(slice(output, elements));
    PacketRunCursor cursor(fates_of_copy(source, cut, message), cut);
    for (PacketRun run; cursor.next(run);) {
      const ElementRun of_output{elements.begin + run.elements.begin, elements.begin + run.elements.end};
      (run.fate == PacketRun::Fate::kLost ? lost_runs : delivered_runs).push_back(of_output);
    }
  }
  if (!memory.bytes.empty()) {
    change_runs_on_device(RunOperation::kCopy, output, memory, delivered_runs);
    change_runs_on_device(RunOperation::kCopy, memory, output, lost_runs);
  } else if (!own_values.bytes.empty()) {
    change_runs_on_device(RunOperation::kCopy, own_values, output, lost_runs);
  } else {
    change_runs_on_device(RunOperation::kZero, {}, output, lost_runs);
  }
}

void OneHop::lose_parts(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values, Tensor memory,
                        const Message& message) {
  if (output.stream != nullptr) return lose_parts_on_device(output, counts, own_values, memory, message);
  std::uint64_t begin = 0;
  for (int source = 0; source < context_.inner.world_size(); ++source) {
    const sim::ElementRange elements{begin, begin + counts[source]};
    begin = elements.end;
    const Tensor received = slice(output, elements);
    const sim::Packetizer cut = packets(received);
    const sim::PacketMask* lost = fates_of_copy(source, cut, message);
    fill(received, lost, cut, slice_if_any(own_values, elements), slice_if_any(memory, elements));
  }
}

void OneHop::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                        const Message& message) {
  const ConstTensor own_values = keep_for_own(output);
  const Tensor remembered = memory(StaleMemory::Use::kAllGather, message, output, counts);
  context_.inner.all_gather(input, output, counts, message);
  lose_parts(output, counts, own_values, remembered, message);
}

void OneHop::lose_results(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values,
                          const Message& message) {
  const Tensor remembered = memory(StaleMemory::Use::kAllReduceResult, message, output, counts);
  lose_parts(output, counts, own_values, remembered, message);
}

void OneHop::draw_results(ElementType type, std::span<const std::uint64_t> counts, const Message& message,
                          LossesByRank& lost) {
  const std::uint64_t most = counts.empty() ? 0 : *std::ranges::max_element(counts);
  lost.start(context_.inner.world_size(),
             sim::Packetizer(most, element_bytes(type), context_.network.payload_bytes).packets());
  for (int source = 0; source < context_.inner.world_size(); ++source) {
    const sim::Packetizer cut(counts[source], element_bytes(type), context_.network.payload_bytes);
    if (consistency_ == Consistency::kShared && source != context_.inner.rank()) {
      context_.ledger.pass_message(link_to_all(source, message), context_.group, cut);
    } else {
      lost.set(source, fates_of_copy(source, cut, message));
    }
  }
}

void OneHop::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                        std::span<const std::uint64_t> receive_counts, const Message& message) {
  const ConstTensor own_values = keep_for_own(output);
  const Tensor remembered = memory(StaleMemory::Use::kAllToAll, message, output, receive_counts);
  const std::size_t size = element_bytes(input.type);
  context_.inner.all_to_all(input, send_counts, output, receive_counts, message);
  std::uint64_t begin = 0;
  for (int peer = 0; peer < context_.inner.world_size(); ++peer) {
    const sim::ElementRange elements{begin, begin + receive_counts[peer]};
    begin = elements.end;
    if (peer == context_.inner.rank()) continue;
    const Tensor received = slice(output, elements);
    const sim::Packetizer cut = packets(received);
    const sim::PacketMask* lost =
        context_.ledger.next_message(link(peer, context_.inner.rank(), message), context_.group, cut, Tally::kCounted);
    fill(received, lost, cut, slice_if_any(own_values, elements), slice_if_any(remembered, elements));
    const sim::Packetizer sent(send_counts[peer], size, context_.network.payload_bytes);
    context_.ledger.pass_message(link(context_.inner.rank(), peer, message), context_.group, sent);
  }
}

void OneHop::broadcast(Tensor data, int root, const Message& message) {
  const ConstTensor own_values = keep_for_own(data);
  const Tensor remembered = memory(StaleMemory::Use::kBroadcast, message, data, {}, root);
  context_.inner.broadcast(data, root, message);
  const sim::Packetizer cut = packets(data);
  const sim::PacketMask* lost = fates_of_copy(root, cut, message);
  fill(data, lost, cut, own_values, remembered);
}

}  // namespace droptest::comm
