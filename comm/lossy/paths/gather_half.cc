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
  if (!can_lose(context_.network.gather) || !context_.network.gather.rule().keeps_own()) return {values.type, {}};
  const Tensor kept = scratch.take(Scratch::Slot::kInputCopy, values, values.count_elems());
  copy(values, kept);
  return kept;
}

ConstTensor GatherHalf::keep_contribution(ConstTensor input, ReduceOp op, Scratch& scratch) {
  const Tensor kept = copy_for_own(input, scratch);
  const bool is_scaled = context_.network.gather.rule().scale == FillRule::Scale::kSqrtRanks;
  if (kept.bytes.empty() || !is_scaled || is_integer(input.type)) return kept;
  const double spread = std::sqrt(static_cast<double>(context_.group.world_size()));
  if (op == ReduceOp::kSum) scale(kept, spread);
  if (op == ReduceOp::kMean) divide(kept, spread);
  return kept;
}

Tensor GatherHalf::memory(StaleMemory::Use use, const Message& message, ConstTensor values,
                          std::span<const std::uint64_t> cut, int peer) {
  if (!can_lose(context_.network.gather) || !context_.network.gather.rule().remembers()) return {values.type, {}};
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

void GatherHalf::take(const CallArguments& call, const PathMessage& message, CallFates& fates, Interest of_others) {
  // A broadcast has one message.
  const auto number = static_cast<std::size_t>(call.operation == Operation::kBroadcast ? 0 : message.source);
  lost_.take(context_, call.message.traffic_class, fates, message, message.to_all ? of_others : Interest::kNone,
             number);
  const bool is_own = message.to_all && message.source == context_.group.rank();
  if (is_own && context_.network.gather.rule().keeps_own()) lost_.arrives(number);
}

void GatherHalf::start_results(const CallArguments& call, std::span<const std::uint64_t> counts) {
  remembered_ = memory(StaleMemory::Use::kAllReduceResult, call.message, call.output, counts);
  lost_.start(static_cast<std::size_t>(context_.group.world_size()));
}

void GatherHalf::plan(const CallArguments& call, PathMessages& messages, CallFates& fates) {
  using Use = StaleMemory::Use;
  const bool is_broadcast = call.operation == Operation::kBroadcast;
  const bool is_all_to_all = call.operation == Operation::kAllToAll;
  const std::span<const std::uint64_t> cut = is_all_to_all ? call.receive_counts : call.counts;
  remembered_ = memory(is_broadcast    ? Use::kBroadcast
                       : is_all_to_all ? Use::kAllToAll
                                       : Use::kAllGather,
                       call.message, call.output, cut, is_broadcast ? call.peer : -1);
  lost_.start(static_cast<std::size_t>(context_.group.world_size()));
  messages.visit_of(shape_of(call), context_.group.rank(),
                    [&](const PathMessage& message) { take(call, message, fates); });
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
