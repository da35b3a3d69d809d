// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/direct_path.h"

#include <array>

#include "comm/lossy/packet_runs.h"
#include "comm/rank_order_reduction.h"

namespace droptest::comm {

DirectPath::DirectPath(const PathContext& context)
    : context_(context), one_hop_(context, context.network.consistency) {}

// The owner's own contribution stays where it is: no packet, no fate.
const sim::PacketMask* DirectPath::fates_of_contribution(int source, const sim::Packetizer& packets,
                                                         const Message& message) {
  const int me = context_.inner.rank();
  if (source == me) return nullptr;
  const sim::Link link{message.traffic_class, sim::Half::kReduce,
                       static_cast<std::uint16_t>(context_.inner.world_rank(source)),
                       static_cast<std::uint16_t>(context_.inner.world_rank(me))};
  return context_.ledger.next_message(link, context_.group, packets, Tally::kCounted);
}

void DirectPath::draw_outgoing(std::span<const std::uint64_t> counts, ElementType type, const Message& message) {
  const int me = context_.inner.rank();
  for (int owner = 0; owner < context_.inner.world_size(); ++owner) {
    if (owner == me) continue;
    const sim::Link link{message.traffic_class, sim::Half::kReduce,
                         static_cast<std::uint16_t>(context_.inner.world_rank(me)),
                         static_cast<std::uint16_t>(context_.inner.world_rank(owner))};
    const sim::Packetizer packets(counts[owner], element_bytes(type), context_.network.payload_bytes);
    context_.ledger.next_message(link, context_.group, packets, Tally::kOtherEnd);
  }
}

// All contributions arrived: one pass in rank order.
void DirectPath::reduce_all(ConstTensor received, Tensor part, ReduceOp op) {
  contributions_.clear();
  for (int source = 0; source < context_.inner.world_size(); ++source) {
    contributions_.push_back(received.bytes.data() + static_cast<std::size_t>(source) * part.bytes.size());
  }
  const std::array<std::byte*, 1> outputs = {part.bytes.data()};
  reduce_in_rank_order(op, part.type, contributions_, outputs, part.count_elems());
}

void DirectPath::reduce(ConstTensor input, Tensor part, std::span<const std::uint64_t> counts, ReduceOp op,
                        StaleMemory::Use use, const Message& message) {
  const HalfNetwork& half = context_.network.reduce;
  check_reduction(half.fill, op, input.type, message);
  const int world_size = context_.inner.world_size();
  const int me = context_.inner.rank();
  const std::uint64_t count = counts[me];
  const sim::Packetizer packets(count, element_bytes(input.type), context_.network.payload_bytes);

  const auto ranks = static_cast<std::uint64_t>(world_size);
  const Tensor received = context_.scratch.take(Scratch::Slot::kReceived, input.type, ranks * count);
  receive_counts_.assign(ranks, count);
  context_.inner.all_to_all(input, counts, received, receive_counts_, message);

  const bool lossy = can_lose(half);
  if (!lossy) {
    for (int source = 0; source < world_size; ++source) fates_of_contribution(source, packets, message);
    reduce_all(received, part, op);
    draw_outgoing(counts, input.type, message);
    return;
  }
  const bool stale = half.fill == Fill::kStale;
  Tensor remembered;
  if (stale) remembered = context_.stale.of(use, message, input.type, ranks * count);
  const double factor = half.fill == Fill::kInverseProbability ? inverse_probability_factor(half) : 1;
  lost_contributions_.start(packets.packets());

  // The sum runs in rank order over contributions of which some packets may be missing, so it starts from what the
  // reduction leaves out wherever the first one is.
  for (int source = 0; source < world_size; ++source) {
    const auto s = static_cast<std::uint64_t>(source);
    const sim::ElementRange elements{s * count, (s + 1) * count};
    Tensor contribution = slice(received, elements);
    const sim::PacketMask* lost = fates_of_contribution(source, packets, message);
    lost_contributions_.add(lost);
    if (stale) {
      const Tensor last = slice(remembered, elements);
      copy_delivered(contribution, last, lost, packets);
      contribution = last;
      lost = nullptr;
    }
    if (factor != 1 && source != me) scale(contribution, factor);
    if (source > 0) {
      reduce_delivered(contribution, part, op, lost, packets);
    } else {
      copy(contribution, part);
      op == ReduceOp::kSum ? zero_lost(part, lost, packets) : lowest_lost(part, lost, packets);
    }
  }
  if (half.fill == Fill::kCountRescale) lost_contributions_.rescale(part, 0, packets, world_size);
  draw_outgoing(counts, input.type, message);
}

void DirectPath::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  const int world_size = context_.inner.world_size();
  const auto ranks = static_cast<std::uint64_t>(world_size);
  const std::uint64_t count = input.count_elems();
  part_counts_.assign(ranks, count / ranks);
  for (std::uint64_t r = 0; r < count % ranks; ++r) ++part_counts_[r];

  const ConstTensor own_values = one_hop_.keep_for_own(input);
  const Tensor part = context_.scratch.take(Scratch::Slot::kPart, input.type, part_counts_[context_.inner.rank()]);
  reduce(input, part, part_counts_, op, StaleMemory::Use::kReduceContributions, message);
  one_hop_.gather_results(part, output, part_counts_, own_values, message);
}

void DirectPath::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                                const Message& message) {
  reduce(input, output, counts, op, StaleMemory::Use::kReduceScatterContributions, message);
}

void DirectPath::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                            const Message& message) {
  one_hop_.all_gather(input, output, counts, message);
}

void DirectPath::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                            std::span<const std::uint64_t> receive_counts, const Message& message) {
  one_hop_.all_to_all(input, send_counts, output, receive_counts, message);
}

void DirectPath::broadcast(Tensor data, int root, const Message& message) { one_hop_.broadcast(data, root, message); }

void DirectPath::send(ConstTensor data, int destination, const Message& message) {
  one_hop_.send(data, destination, message);
}

void DirectPath::recv(Tensor data, int source, const Message& message) { one_hop_.recv(data, source, message); }

}  // namespace droptest::comm
