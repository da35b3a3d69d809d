// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/direct_path.h"

#include <typeinfo>

#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr std::size_t kWordsOfCacheLine = 8;

}  // namespace

// Lives on the stack of the rank that waits for its call.
class DirectPath::Part final : public PartReduction {
 public:
  /// What becomes of the results: the owner of each part takes out what receivers lose of it, or they do it.
  enum class LostResults : std::uint8_t { kByOwner, kByReceiver };
  Part(DirectPath& path, ReduceOp op, ConstTensor like, std::uint64_t count_elems, Tensor remembered,
       LostResults lost_results, const Message& message)
      : view_(path.lost_results_),
        path_(path),
        op_(op),
        like_(like),
        packets_(count_elems, element_bytes(like.type), path.context_.network.payload_bytes),
        remembered_(remembered),
        lost_results_(lost_results),
        message_(message) {}

  void reduce(std::span<const std::byte* const> contributions, std::span<std::byte* const> results,
              std::span<const PartReduction* const> reductions) override {
    path_.reduce_part(*this, contributions, results, reductions);
  }

  ReduceOp op() const { return op_; }
  ConstTensor like() const { return like_; }
  const sim::Packetizer& packets() const { return packets_; }
  Tensor remembered() const { return remembered_; }
  LostResults lost_results() const { return lost_results_; }
  const Message& message() const { return message_; }

  /// What its rank loses of an owner's results, where owners take it out.
  std::span<const std::uint64_t> lost_of(int owner) const { return view_.of(owner); }

 private:
  LossesByRank::View view_;  // first, because other ranks read it
  DirectPath& path_;
  ReduceOp op_;
  ConstTensor like_;  // the type and the memory of contributions and results
  sim::Packetizer packets_;
  Tensor remembered_;  // each source's last values, one after the other; empty where the fill does not need them
  LostResults lost_results_;
  const Message& message_;
};

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

void DirectPath::draw_outgoing(ConstTensor sent, std::span<const std::uint64_t> counts, const Message& message) {
  const int me = context_.inner.rank();
  std::uint64_t begin = 0;
  for (int owner = 0; owner < context_.inner.world_size(); ++owner) {
    const sim::ElementRange part{begin, begin + counts[owner]};
    begin = part.end;
    if (owner == me) continue;
    const sim::Link link{message.traffic_class, sim::Half::kReduce,
                         static_cast<std::uint16_t>(context_.inner.world_rank(me)),
                         static_cast<std::uint16_t>(context_.inner.world_rank(owner))};
    const sim::Packetizer packets(part.size(), element_bytes(sent.type), context_.network.payload_bytes);
    if (context_.feedback == nullptr) {
      context_.ledger.pass_message(link, context_.group, packets);
      continue;
    }
    const sim::PacketMask* lost = context_.ledger.next_message(link, context_.group, packets, Tally::kOtherEnd);
    if (context_.network.reduce.selection == LossSelection::kLargestNorm) {
      lost = adversary_.hit(lost, slice(sent, part), packets);
    }
    context_.feedback->undelivered(part.begin, slice(sent, part), lost, packets);
  }
}

ConstTensor DirectPath::corrected(ConstTensor input, ReduceOp op, StaleMemory::Use use,
                                  std::span<const std::uint64_t> counts, const Message& message) {
  return context_.feedback == nullptr ? input : context_.feedback->correct(input, op, use, counts, message);
}

Tensor DirectPath::remembered_contributions(StaleMemory::Use use, ConstTensor like,
                                            std::span<const std::uint64_t> counts, const Message& message) {
  const HalfNetwork& half = context_.network.reduce;
  if (!can_lose(half) || half.fill != Fill::kStale) return {like.type, {}};
  const auto ranks = static_cast<std::uint64_t>(context_.inner.world_size());
  const std::uint64_t part_elems = counts[static_cast<std::size_t>(context_.inner.rank())];
  return context_.stale.of(use, message, like, ranks * part_elems, counts);
}

bool DirectPath::owners_lose_results(ConstTensor input) const {
  const HalfNetwork& gather = context_.network.gather;
  return context_.inner.reduces_in_place() && input.stream == nullptr && can_lose(gather) &&
         gather.fill == Fill::kZero && context_.network.reduce.fill != Fill::kStale;
}

const DirectPath::Part& DirectPath::part_of(const PartReduction& reduction) {
  DROPTEST_CHECK(typeid(reduction) == typeid(Part), "ranks reduce along different paths");
  return static_cast<const Part&>(reduction);
}

// All ranks have drawn their gather half, and wait.
void DirectPath::lose_results(std::span<const PartReduction* const> reductions) {
  const int me = context_.inner.rank();
  DROPTEST_CHECK(reductions.size() == static_cast<std::size_t>(context_.inner.world_size()), "reductions out of sight");
  const bool shared = context_.network.consistency == Consistency::kShared;
  for (int receiver = 0; receiver < context_.inner.world_size(); ++receiver) {
    const PartReduction* const that_knows = reductions[static_cast<std::size_t>(shared ? me : receiver)];
    const std::span<const std::uint64_t> lost = part_of(*that_knows).lost_of(me);
    for (std::size_t w = 0; w < lost.size(); w += kWordsOfCacheLine) __builtin_prefetch(&lost[w]);
    delivered_.lose_result(receiver, lost);
  }
}

// Before the ranks meet, with the fates of the results: so the code that draws comes into the caches once a call.
void DirectPath::draw_contributions(const sim::Packetizer& packets, const Message& message) {
  const int world_size = context_.inner.world_size();
  lost_contributions_.resize(static_cast<std::size_t>(world_size));
  for (int source = 0; source < world_size; ++source) {
    sim::PacketMask& kept = lost_contributions_[static_cast<std::size_t>(source)];
    const sim::PacketMask* lost = fates_of_contribution(source, packets, message);
    if (lost == nullptr) {
      kept.resize(0);
    } else {
      kept = *lost;
    }
  }
}

void DirectPath::reduce_part(const Part& part, std::span<const std::byte* const> contributions,
                             std::span<std::byte* const> results, std::span<const PartReduction* const> reductions) {
  const HalfNetwork& half = context_.network.reduce;
  const int world_size = context_.inner.world_size();
  delivered_.start(part.packets(), world_size);
  if (part.lost_results() == Part::LostResults::kByOwner) lose_results(reductions);
  for (int source = 0; source < world_size; ++source) {
    sim::PacketMask& lost = lost_contributions_[static_cast<std::size_t>(source)];
    if (lost.size() == 0) continue;
    if (half.selection == LossSelection::kLargestNorm) {
      const ConstTensor like = part.like();
      const std::size_t bytes = part.packets().count_elems() * element_bytes(like.type);
      lost = *adversary_.hit(&lost, {like.type, {contributions[source], bytes}, like.stream}, part.packets());
    }
    delivered_.lose(source, &lost);
  }
  if (!part.remembered().bytes.empty()) {
    return delivered_.reduce_with_last(part.op(), part.remembered(), contributions, results);
  }
  DeliveredReduction::Scaling scaling;
  if (half.fill == Fill::kCountRescale) scaling.sums = DeliveredReduction::Scaling::Sums::kByCount;
  if (half.fill == Fill::kInverseProbability) {
    scaling.contributions = inverse_probability_factor(half, part.packets().packets());
  }
  scaling.exempt = context_.inner.rank();
  delivered_.reduce(part.op(), part.like(), scaling, contributions, results);
}

void DirectPath::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  check_reduction(context_.network.reduce.fill, op, input.type, message);
  const auto ranks = static_cast<std::uint64_t>(context_.inner.world_size());
  const std::uint64_t count = input.count_elems();
  part_counts_.assign(ranks, count / ranks);
  for (std::uint64_t r = 0; r < count % ranks; ++r) ++part_counts_[r];

  const ConstTensor own_values = one_hop_.keep_contribution(input, op);
  const std::uint64_t part_elems = part_counts_[context_.inner.rank()];
  const bool by_owner = owners_lose_results(input);
  if (by_owner) one_hop_.draw_results(input.type, part_counts_, message, lost_results_);
  Part part(*this, op, input, part_elems,
            remembered_contributions(StaleMemory::Use::kReduceContributions, input, part_counts_, message),
            by_owner ? Part::LostResults::kByOwner : Part::LostResults::kByReceiver, message);
  const ConstTensor sent = corrected(input, op, StaleMemory::Use::kAllReduceFeedback, part_counts_, message);
  draw_contributions(part.packets(), message);
  context_.inner.all_reduce_with(sent, output, part, message);
  draw_outgoing(sent, part_counts_, message);
  if (!by_owner) one_hop_.lose_results(output, part_counts_, own_values, message);
}

void DirectPath::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                                const Message& message) {
  check_reduction(context_.network.reduce.fill, op, input.type, message);
  const std::uint64_t part_elems = output.count_elems();
  Part part(*this, op, input, part_elems,
            remembered_contributions(StaleMemory::Use::kReduceScatterContributions, input, counts, message),
            Part::LostResults::kByReceiver, message);
  const ConstTensor sent = corrected(input, op, StaleMemory::Use::kReduceScatterFeedback, counts, message);
  draw_contributions(part.packets(), message);
  context_.inner.reduce_scatter_with(sent, output, counts, part, message);
  draw_outgoing(sent, counts, message);
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

std::vector<std::uint64_t> DirectPath::all_reduce_parts(std::uint64_t count_elems) {
  return even_counts(count_elems, context_.inner.world_size());
}

}  // namespace droptest::comm
