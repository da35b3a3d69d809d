// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/contribution_path.h"

#include <algorithm>
#include <numeric>

#include "comm/lossy/fill/packet_runs.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

int lowest_world_rank(const Communicator& group) {
  int lowest = group.world_rank(0);
  for (int rank = 1; rank < group.world_size(); ++rank) lowest = std::min(lowest, group.world_rank(rank));
  return lowest;
}

}  // namespace

ContributionPath::ContributionPath(const PathContext& context)
    : context_(context),
      one_hop_(context, Consistency::kShared),
      aggregation_point_(static_cast<std::uint16_t>(lowest_world_rank(context.inner))) {}

sim::Link ContributionPath::link_of_contribution(int source, const Message& message) const {
  return {message.traffic_class, sim::Half::kReduce, static_cast<std::uint16_t>(context_.inner.world_rank(source)),
          sim::Link::kEveryDestination};
}

const sim::PacketMask* ContributionPath::fates_of_contribution(int source, const sim::Packetizer& packets,
                                                               const Message& message) {
  const bool mine = source == context_.inner.rank();
  return context_.ledger.next_message(link_of_contribution(source, message), context_.group, packets,
                                      mine ? Tally::kCounted : Tally::kOtherEnd);
}

// Draws the fates of all contributions, and returns this rank's as it reaches the aggregation point: the input itself
// where nothing of it is lost, else what is left of it in `masked`, which may be the input.
ConstTensor ContributionPath::what_arrives(ConstTensor input, Tensor masked, ReduceOp op,
                                           const sim::Packetizer& packets, Uses uses, const Message& message) {
  const HalfNetwork& half = context_.network.reduce;
  check_reduction(half.fill, op, input.type, message);
  const bool lossy = can_lose(half);
  if (lossy) lost_contributions_.start(packets.packets());
  if (context_.feedback != nullptr) input = context_.feedback->correct(input, op, uses.feedback, uses.cut, message);
  ConstTensor arrives = input;
  for (int source = 0; source < context_.inner.world_size(); ++source) {
    const bool mine = source == context_.inner.rank();
    const sim::PacketMask* lost = fates_of_contribution(source, packets, message);
    if (!lossy) continue;
    lost_contributions_.add(lost);
    if (!mine) continue;
    if (context_.feedback != nullptr) context_.feedback->undelivered(0, input, lost, packets);
    if (half.fill == Fill::kStale) {
      const Tensor last = context_.stale.of(uses.stale, message, input, input.count_elems(), uses.cut);
      copy_delivered(input, last, lost, packets);
      arrives = last;
    } else if (lost != nullptr) {
      copy_delivered(input, masked, lost, packets);
      op == ReduceOp::kSum ? zero_lost(masked, lost, packets) : lowest_lost(masked, lost, packets);
      arrives = masked;
    }
  }
  return arrives;
}

// Lives on the stack of the rank that waits for its call. Each rank has drawn the fates of its own contribution, and
// has those of the others from them.
class ContributionPath::Part final : public PartReduction {
 public:
  Part(DeliveredReduction& delivered, const sim::PacketMask* lost, ConstTensor like,
       const DeliveredReduction::Scaling& scaling)
      : delivered_(delivered), lost_(lost), like_(like), scaling_(scaling) {}

  void reduce(std::span<const std::byte* const> contributions, std::span<std::byte* const> results,
              std::span<const PartReduction* const> reductions) override {
    DROPTEST_CHECK(reductions.size() == contributions.size(), "reductions out of sight");
    for (std::size_t source = 0; source < reductions.size(); ++source) {
      delivered_.lose(static_cast<int>(source), dynamic_cast<const Part&>(*reductions[source]).lost_);
    }
    delivered_.reduce(ReduceOp::kSum, like_, scaling_, contributions, results);
  }

 private:
  DeliveredReduction& delivered_;
  const sim::PacketMask* lost_;  // of this rank's contribution
  ConstTensor like_;
  DeliveredReduction::Scaling scaling_;
};

bool ContributionPath::reduces_in_parts(ReduceOp op) const {
  const HalfNetwork& half = context_.network.reduce;
  return context_.inner.reduces_in_place() && op == ReduceOp::kSum && context_.feedback == nullptr &&
         (half.fill == Fill::kZero || half.fill == Fill::kCountRescale);
}

void ContributionPath::all_reduce_in_parts(ConstTensor input, Tensor output, const sim::Packetizer& packets,
                                           const Message& message) {
  const HalfNetwork& half = context_.network.reduce;
  check_reduction(half.fill, ReduceOp::kSum, input.type, message);
  const int ranks = context_.inner.world_size();
  const std::vector<std::uint64_t> counts = even_counts(input.count_elems(), ranks);
  const auto mine = counts.begin() + context_.inner.rank();
  const std::uint64_t begin = std::accumulate(counts.begin(), mine, std::uint64_t{0});
  delivered_.start(packets, ranks, {begin, begin + *mine});
  bool lossy = false;
  for (int source = 0; source < ranks; ++source) {
    if (source == context_.inner.rank()) {
      const sim::PacketMask* lost = fates_of_contribution(source, packets, message);
      lossy = lost != nullptr;
      if (lossy) own_lost_ = *lost;
    } else {
      context_.ledger.pass_message(link_of_contribution(source, message), context_.group, packets);
    }
  }
  DeliveredReduction::Scaling scaling;
  if (half.fill == Fill::kCountRescale) scaling.sums = DeliveredReduction::Scaling::Sums::kByCount;
  Part part(delivered_, lossy ? &own_lost_ : nullptr, input, scaling);
  context_.inner.all_reduce_with(input, output, part, message);
}

void ContributionPath::finish(Tensor results, std::uint64_t first_element, ReduceOp op,
                              const sim::Packetizer& packets) {
  const HalfNetwork& half = context_.network.reduce;
  if (!can_lose(half)) return;
  if (half.fill == Fill::kCountRescale) {
    lost_contributions_.rescale(results, first_element, packets, context_.inner.world_size());
  } else if (half.fill == Fill::kInverseProbability) {
    scale(results, inverse_probability_factor(half, packets.packets()));
  } else if (half.fill == Fill::kZero && op == ReduceOp::kMax) {
    lost_contributions_.zero_where_all_lost(results, first_element, packets, context_.inner.world_size());
  }
}

const sim::PacketMask* ContributionPath::fates_of_results(const sim::Packetizer& packets, const Message& message) {
  const auto me = static_cast<std::uint16_t>(context_.inner.world_rank(context_.inner.rank()));
  sim::Link link{message.traffic_class, sim::Half::kGather, aggregation_point_, sim::Link::kEveryDestination};
  const bool aggregates = me == aggregation_point_;
  if (context_.network.consistency == Consistency::kShared) {
    return context_.ledger.next_message(link, context_.group, packets, aggregates ? Tally::kCounted : Tally::kOtherEnd);
  }
  for (int receiver = 0; aggregates && receiver < context_.inner.world_size(); ++receiver) {
    link.destination = static_cast<std::uint16_t>(context_.inner.world_rank(receiver));
    if (link.destination != me) context_.ledger.pass_message(link, context_.group, packets);
  }
  link.destination = me;
  return context_.ledger.next_message(link, context_.group, packets, Tally::kCounted);
}

void ContributionPath::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  const sim::Packetizer packets(input.count_elems(), element_bytes(input.type), context_.network.payload_bytes);
  const ConstTensor own_values = one_hop_.keep_contribution(input, op);
  // The output is overwritten in any case, so what arrives may stand in it: in place nothing is copied.
  constexpr Uses kUses{StaleMemory::Use::kReduceContributions, StaleMemory::Use::kAllReduceFeedback, {}};
  if (reduces_in_parts(op)) {
    all_reduce_in_parts(input, output, packets, message);
  } else {
    const ConstTensor arrives = what_arrives(input, output, op, packets, kUses, message);
    context_.inner.all_reduce(arrives, output, op, message);
    finish(output, 0, op, packets);
  }

  if (context_.network.gather.loss == nullptr && context_.network.gather.links.empty()) return;
  const Tensor remembered = one_hop_.memory(StaleMemory::Use::kAllReduceResult, message, output, {});
  const sim::PacketMask* lost = fates_of_results(packets, message);
  one_hop_.fill(output, lost, packets, own_values, remembered);
}

void ContributionPath::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                      ReduceOp op, const Message& message) {
  const sim::Packetizer packets(input.count_elems(), element_bytes(input.type), context_.network.payload_bytes);
  const Tensor masked = context_.scratch.take(Scratch::Slot::kMasked, input, input.count_elems());
  const Uses uses{StaleMemory::Use::kReduceScatterContributions, StaleMemory::Use::kReduceScatterFeedback, counts};
  const ConstTensor arrives = what_arrives(input, masked, op, packets, uses, message);
  context_.inner.reduce_scatter(arrives, output, counts, op, message);
  const auto mine = counts.begin() + context_.inner.rank();
  finish(output, std::accumulate(counts.begin(), mine, std::uint64_t{0}), op, packets);
}

void ContributionPath::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                                  const Message& message) {
  one_hop_.all_gather(input, output, counts, message);
}

void ContributionPath::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                                  std::span<const std::uint64_t> receive_counts, const Message& message) {
  one_hop_.all_to_all(input, send_counts, output, receive_counts, message);
}

void ContributionPath::broadcast(Tensor data, int root, const Message& message) {
  one_hop_.broadcast(data, root, message);
}

std::vector<std::uint64_t> ContributionPath::all_reduce_parts(std::uint64_t count_elems) { return {count_elems}; }

}  // namespace droptest::comm
