// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/gather_half.h"

#include <algorithm>
#include <array>
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

Tensor GatherHalf::copy_for_own(ConstTensor values, Scratch& scratch) {
  if (!can_lose(context_.network.gather) || !keeps_own(context_.network.gather.fill)) return {values.type, {}};
  const Tensor kept = scratch.take(Scratch::Slot::kInputCopy, values, values.count_elems());
  copy(values, kept);
  return kept;
}

ConstTensor GatherHalf::keep_contribution(ConstTensor input, ReduceOp op, Scratch& scratch) {
  const Tensor kept = copy_for_own(input, scratch);
  if (kept.bytes.empty() || context_.network.gather.fill != Fill::kOwnScaled || is_integer(input.type)) return kept;
  const double spread = std::sqrt(static_cast<double>(context_.group.world_size()));
  if (op == ReduceOp::kSum) scale(kept, spread);
  if (op == ReduceOp::kMean) divide(kept, spread);
  return kept;
}

Tensor GatherHalf::memory(StaleMemory::Use use, const Message& message, ConstTensor values,
                          std::span<const std::uint64_t> cut, int peer) {
  if (!can_lose(context_.network.gather) || context_.network.gather.fill != Fill::kStale) return {values.type, {}};
  return context_.stale.of(use, message, values, values.count_elems(), cut, peer);
}

void GatherHalf::fill(Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets, ConstTensor own_values,
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

// Draws the packets that this rank loses of a message from `source` to all. Per receiver, each receiver draws the link
// that it counts; the source passes the messages of all its links, and loses nothing.
void GatherHalf::draw_copy(int source, const sim::Packetizer& packets, sim::TrafficClass traffic_class,
                           CallFates& fates) {
  constexpr sim::Half kHalf = sim::Half::kGather;
  const int me = context_.group.rank();
  if (consistency_ == Consistency::kShared) {
    lost_.draw(context_.ledger, fates, context_.link_to_all(traffic_class, kHalf, source), packets,
               source == me ? Tally::kCounted : Tally::kOtherEnd);
    if (source == me && keeps_own(context_.network.gather.fill)) lost_.last_arrives();
    return;
  }
  if (source != me) {
    return lost_.draw(context_.ledger, fates, context_.link(traffic_class, kHalf, source, me), packets,
                      Tally::kCounted);
  }
  for (int destination = 0; destination < context_.group.world_size(); ++destination) {
    if (destination == me) continue;
    context_.ledger.pass_message(fates, context_.link(traffic_class, kHalf, me, destination), packets);
  }
  lost_.arrives();
}

void GatherHalf::plan_results(const CallArguments& call, std::span<const std::uint64_t> counts, CallFates& fates) {
  remembered_ = memory(StaleMemory::Use::kAllReduceResult, call.message, call.output, counts);
  lost_.start();
  for (int source = 0; source < context_.group.world_size(); ++source) {
    draw_copy(source, context_.packets(call.output.type, counts[source]), call.message.traffic_class, fates);
  }
}

void GatherHalf::plan_results_of_owners(const CallArguments& call, std::span<const std::uint64_t> counts,
                                        CallFates& fates, LossesByRank& lost) {
  const ElementType type = call.output.type;
  const std::uint64_t most = counts.empty() ? 0 : *std::ranges::max_element(counts);
  lost.start(context_.group.world_size(), context_.packets(type, most).packets());
  lost_.start();
  for (int source = 0; source < context_.group.world_size(); ++source) {
    const sim::Packetizer cut = context_.packets(type, counts[source]);
    if (consistency_ == Consistency::kShared && source != context_.group.rank()) {
      const sim::Link link = context_.link_to_all(call.message.traffic_class, sim::Half::kGather, source);
      context_.ledger.pass_message(fates, link, cut);
      lost_.arrives();
    } else {
      draw_copy(source, cut, call.message.traffic_class, fates);
      lost.set(source, lost_.of(static_cast<std::size_t>(source)));
    }
  }
}

void GatherHalf::plan_all_to_all(const CallArguments& call, CallFates& fates) {
  const sim::TrafficClass traffic_class = call.message.traffic_class;
  remembered_ = memory(StaleMemory::Use::kAllToAll, call.message, call.output, call.receive_counts);
  const int me = context_.group.rank();
  for (int peer = 0; peer < context_.group.world_size(); ++peer) {
    if (peer == me) {
      lost_.arrives();
      continue;
    }
    lost_.draw(context_.ledger, fates, context_.link(traffic_class, sim::Half::kGather, peer, me),
               context_.packets(call.output.type, call.receive_counts[peer]), Tally::kCounted);
    context_.ledger.pass_message(fates, context_.link(traffic_class, sim::Half::kGather, me, peer),
                                 context_.packets(call.input.type, call.counts[peer]));
  }
}

void GatherHalf::plan(const CallArguments& call, CallFates& fates) {
  lost_.start();
  if (call.operation == Operation::kAllToAll) return plan_all_to_all(call, fates);
  if (call.operation == Operation::kBroadcast) {
    remembered_ = memory(StaleMemory::Use::kBroadcast, call.message, call.output, {}, call.peer);
    return draw_copy(call.peer, context_.packets(call.output.type, call.output.count_elems()),
                     call.message.traffic_class, fates);
  }
  remembered_ = memory(StaleMemory::Use::kAllGather, call.message, call.output, call.counts);
  for (int source = 0; source < context_.group.world_size(); ++source) {
    draw_copy(source, context_.packets(call.output.type, call.counts[source]), call.message.traffic_class, fates);
  }
}

void GatherHalf::run(const CallArguments& call, Communicator& inner, Scratch& scratch) {
  const ConstTensor own_values = keep_for_own(call.output, scratch);
  inner.run(call);
  const std::array<std::uint64_t, 1> all = {call.output.count_elems()};
  std::span<const std::uint64_t> counts = call.counts;
  if (call.operation == Operation::kBroadcast) counts = all;
  if (call.operation == Operation::kAllToAll) counts = call.receive_counts;
  if (call.message.lost != nullptr) report_lost(call, counts);
  lose_results(call.output, counts, own_values);
}

void GatherHalf::report_lost(const CallArguments& call, std::span<const std::uint64_t> counts) const {
  std::uint64_t begin = 0;
  for (std::size_t source = 0; source < counts.size(); ++source) {
    append_lost(lost_.of(source), context_.packets(call.output.type, counts[source]), begin, *call.message.lost);
    begin += counts[source];
  }
}

// Fills the holes of all parts together, so that a device gets one launch for them, not one for each source.
void GatherHalf::lose_on_device(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values) const {
  std::vector<ElementRun> lost_runs;
  std::vector<ElementRun> delivered_runs;
  std::uint64_t begin = 0;
  for (std::size_t source = 0; source < counts.size(); ++source) {
    const sim::Packetizer cut = context_.packets(output.type, counts[source]);
    PacketRunCursor cursor(lost_.of(source), cut);
    for (PacketRun run; cursor.next(run);) {
      const ElementRun of_output{begin + run.elements.begin, begin + run.elements.end};
      (run.fate == PacketRun::Fate::kLost ? lost_runs : delivered_runs).push_back(of_output);
    }
    begin += counts[source];
  }
  if (!remembered_.bytes.empty()) {
    change_runs_on_device(RunOperation::kCopy, output, remembered_, delivered_runs);
    change_runs_on_device(RunOperation::kCopy, remembered_, output, lost_runs);
  } else if (!own_values.bytes.empty()) {
    change_runs_on_device(RunOperation::kCopy, own_values, output, lost_runs);
  } else {
    change_runs_on_device(RunOperation::kZero, {}, output, lost_runs);
  }
}

void GatherHalf::lose_results(Tensor output, std::span<const std::uint64_t> counts, ConstTensor own_values) const {
  if (output.stream != nullptr) return lose_on_device(output, counts, own_values);
  std::uint64_t begin = 0;
  for (std::size_t source = 0; source < counts.size(); ++source) {
    const sim::ElementRange elements{begin, begin + counts[source]};
    begin = elements.end;
    fill(slice(output, elements), lost_.of(source), context_.packets(output.type, elements.size()),
         slice_if_any(own_values, elements), slice_if_any(remembered_, elements));
  }
}

}  // namespace droptest::comm
