// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/direct_path.h"

#include <algorithm>
#include <numeric>
#include <typeinfo>

#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/on_host.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr std::size_t kWordsOfCacheLine = 8;

}  // namespace

// Lives on the stack of the thread that runs its call.
class DirectPath::Part final : public PartReduction {
 public:
  Part(DirectPath& path, const CallArguments& call) : view_(path.lost_results_), path_(path), call_(call) {}

  void reduce(std::span<const std::byte* const> contributions, std::span<std::byte* const> results,
              std::span<const PartReduction* const> reductions) override {
    path_.reduce_part(*this, contributions, results, reductions);
  }

  ReduceOp op() const { return call_.op; }
  /// The type and the memory of contributions and results.
  ConstTensor like() const { return call_.input; }

  /// The packets of an owner's results that this rank loses, under LostResults::kByOwner.
  std::span<const std::uint64_t> lost_of(int owner) const { return view_.of(owner); }

 private:
  LossesByRank::View view_;  // first, because other ranks read it
  DirectPath& path_;
  const CallArguments& call_;
};

DirectPath::DirectPath(const PathContext& context)
    : context_(context), messages_(context.messages()), gather_half_(context) {
  if (codes_values(context.network.compression))
    coder_.emplace(context.network.compression, context.ledger.network().seed);
}

void DirectPath::add_memory(const SizedCall& call, CallMemory& memory) {
  if (!reduces(call.shape.operation)) return;
  const std::uint64_t from_all = call.of_all_ranks(call.part());
  if (call.remembers_contributions()) memory.remembered += from_all;
  if (codes_values(call.network.compression)) memory.take(CallMemory::Slot::kCoded, call.shape.elements);
  if (!call.network.recovery.keeps_states()) return;
  memory.take(CallMemory::Slot::kReceived, from_all);
  memory.remembered += from_all;
}

bool DirectPath::owners_lose_results(const CallArguments& call) const {
  const HalfNetwork& gather = context_.network.gather;
  const bool in_place = context_.group.part_reductions() == Communicator::PartReductions::kInPlace;
  return call.operation == Operation::kAllReduce && in_place && !coder_ && call.input.stream == nullptr &&
         can_lose(gather) && gather.rule() == FillRule{} && !context_.network.reduce.rule().remembers();
}

// The owner's own contribution does not travel: no packet, no fate. If owners take the lost packets out of results, no
// rank needs the fates of packets that another owner sends to all ranks.
void DirectPath::plan_messages(const CallArguments& call, CallFates& fates) {
  const bool by_owner = lost_results_by_ == LostResults::kByOwner;
  const Interest of_results = by_owner ? Interest::kNone : Interest::kFates;
  const Interest of_outgoing = context_.feeds_back() ? Interest::kFates : Interest::kNone;
  const int me = context_.group.rank();
  const auto ranks = static_cast<std::size_t>(context_.group.world_size());
  lost_contributions_.start(ranks);
  lost_outgoing_.start(ranks);
  if (call.operation == Operation::kAllReduce) gather_half_.start_results(call, counts_);
  messages_.visit_of(shape_of(call), me, [&](const PathMessage& message) {
    if (message.half == sim::Half::kGather) return gather_half_.take(call, message, fates, of_results);
    const bool is_received = message.destination == me;
    (is_received ? lost_contributions_ : lost_outgoing_)
        .take(context_, call.message.traffic_class, fates, message, of_outgoing,
              static_cast<std::size_t>(is_received ? message.source : message.destination));
  });
  if (!by_owner) return;
  const std::uint64_t most = *std::ranges::max_element(counts_);
  lost_results_.start(static_cast<int>(ranks), context_.packets(call.output.type, most).packets());
  for (int source = 0; source < static_cast<int>(ranks); ++source) {
    lost_results_.set(source, gather_half_.lost_of(source));
  }
}

void DirectPath::plan(const CallArguments& call, CallFates& fates) {
  const bool gathers = call.operation == Operation::kAllReduce;
  if (!reduces(call.operation)) return gather_half_.plan(call, messages_, fates);
  const HalfNetwork& half = context_.network.reduce;
  check_reduction(half.fill, call.op, call.input.type, call.message);
  const int ranks = context_.group.world_size();
  if (gathers) {
    counts_ = even_counts(call.input.count_elems(), ranks);
  } else {
    counts_.assign(call.counts.begin(), call.counts.end());
  }
  using Use = StaleMemory::Use;
  if (context_.feeds_back()) {
    feedback_.plan(context_.stale, call.input, call.op, gathers ? Use::kAllReduceFeedback : Use::kReduceScatterFeedback,
                   counts_, call.message);
  }
  if (coder_ && fates.phase != CallFates::Phase::kDraw) plan_codes(call);  // takes draws
  const std::uint64_t part_elems = counts_[static_cast<std::size_t>(context_.group.rank())];
  if (context_.network.recovery.keeps_states()) states_.plan(context_.stale, call, ranks, part_elems, counts_);
  own_part_ = context_.packets(call.input.type, part_elems);
  remembered_ = {call.input.type, {}};
  if (can_lose(half) && half.rule().remembers()) {
    remembered_ = context_.stale.of(gathers ? Use::kReduceContributions : Use::kReduceScatterContributions,
                                    call.message, call.input, static_cast<std::uint64_t>(ranks) * part_elems, counts_);
  }
  lost_results_by_ = owners_lose_results(call) ? LostResults::kByOwner : LostResults::kByReceiver;
  plan_messages(call, fates);
}

const DirectPath::Part& DirectPath::part_of(const PartReduction& reduction) {
  DROPTEST_CHECK(typeid(reduction) == typeid(Part), "ranks reduce along different paths");
  return static_cast<const Part&>(reduction);
}

// Called when all ranks have drawn the fates of their gather half, and wait.
void DirectPath::lose_results(std::span<const PartReduction* const> reductions) {
  const int me = context_.group.rank();
  DROPTEST_CHECK(reductions.size() == static_cast<std::size_t>(context_.group.world_size()), "reductions out of sight");
  const bool shared = context_.network.consistency == Consistency::kShared;
  for (int receiver = 0; receiver < context_.group.world_size(); ++receiver) {
    const PartReduction* const that_knows = reductions[static_cast<std::size_t>(shared ? me : receiver)];
    const std::span<const std::uint64_t> lost = part_of(*that_knows).lost_of(me);
    for (std::size_t w = 0; w < lost.size(); w += kWordsOfCacheLine) __builtin_prefetch(&lost[w]);
    delivered_.lose_result(receiver, lost);
  }
}

void DirectPath::reduce_part(const Part& part, std::span<const std::byte* const> contributions,
                             std::span<std::byte* const> results, std::span<const PartReduction* const> reductions) {
  const HalfNetwork& half = context_.network.reduce;
  const int world_size = context_.group.world_size();
  delivered_.start(own_part_, world_size);
  if (lost_results_by_ == LostResults::kByOwner) lose_results(reductions);
  for (int source = 0; source < world_size; ++source) {
    sim::PacketMask* lost = lost_contributions_.of(static_cast<std::size_t>(source));
    if (lost == nullptr) continue;
    if (half.selection == LossSelection::kLargestNorm) {
      const ConstTensor like = part.like();
      const std::size_t bytes = own_part_.count_elems() * element_bytes(like.type);
      adversary_.hit(*lost, {like.type, {contributions[source], bytes}, like.stream}, own_part_);
    }
    delivered_.lose(source, lost);
  }
  if (!remembered_.bytes.empty()) {
    return delivered_.reduce_with_last(part.op(), remembered_, contributions, results);
  }
  DeliveredReduction::Scaling scaling;
  const FillRule& rule = half.rule();
  if (rule.scale == FillRule::Scale::kByCount) scaling.sums = DeliveredReduction::Scaling::Sums::kByCount;
  if (rule.scale == FillRule::Scale::kByRate) {
    scaling.contributions = inverse_probability_factor(half, own_part_.packets());
  }
  if (rule.keeps_own()) scaling.substitute = context_.group.rank();
  scaling.exempt = context_.group.rank();
  delivered_.reduce(part.op(), part.like(), scaling, contributions, results);
}

void DirectPath::note_undelivered(ConstTensor sent) {
  std::uint64_t begin = 0;
  for (std::size_t owner = 0; owner < counts_.size(); ++owner) {
    const sim::ElementRange part{begin, begin + counts_[owner]};
    begin = part.end;
    const sim::Packetizer packets = context_.packets(sent.type, part.size());
    sim::PacketMask* lost = lost_outgoing_.of(owner);
    if (lost != nullptr && context_.network.reduce.selection == LossSelection::kLargestNorm) {
      adversary_.hit(*lost, slice(sent, part), packets);
    }
    feedback_.undelivered(part.begin, slice(sent, part), lost, packets);
  }
}

void DirectPath::plan_codes(const CallArguments& call) {
  const sim::TrafficClass traffic_class = call.message.traffic_class;
  const int me = context_.group.rank();
  const std::uint64_t own = counts_[static_cast<std::size_t>(me)];
  const bool gathers = call.operation == Operation::kAllReduce;
  coder_->plan(context_.ledger, context_.link_to_all(traffic_class, sim::Half::kReduce, me),
               call.input.count_elems() - own, context_.link_to_all(traffic_class, sim::Half::kGather, me),
               gathers ? own : 0);
}

// The contributions to other ranks' parts as their owners decode them; the own part stays exact.
ConstTensor DirectPath::coded_contribution(ConstTensor values, Scratch& scratch) {
  const Tensor coded = scratch.take(Scratch::Slot::kCoded, values, values.count_elems());
  copy(values, coded);
  std::uint64_t begin = 0;
  for (std::size_t owner = 0; owner < counts_.size(); ++owner) {
    const sim::ElementRange part{begin, begin + counts_[owner]};
    begin = part.end;
    if (static_cast<int>(owner) != context_.group.rank()) coder_->code(sim::Half::kReduce, slice(coded, part));
  }
  if (context_.feeds_back()) feedback_.changed(0, values, coded);
  return coded;
}

// Codes the results of this rank's part as all ranks decode them. The memory of error feedback holds contributions, so
// the error of a mean enters it once for each rank.
void DirectPath::code_results(Tensor results, ReduceOp op) {
  if (!context_.feeds_back()) return coder_->code(sim::Half::kGather, results);
  std::vector<std::byte> exact;
  read_on_host(results, [&exact](ConstTensor host) { exact.assign(host.bytes.begin(), host.bytes.end()); });
  coder_->code(sim::Half::kGather, results);
  const auto me = counts_.begin() + context_.group.rank();
  const double contributions = op == ReduceOp::kMean ? context_.group.world_size() : 1;
  feedback_.changed(std::accumulate(counts_.begin(), me, std::uint64_t{0}), {results.type, exact}, results,
                    contributions);
}

// The copy of the own estimate holds the own contribution, which does not travel.
void DirectPath::run_with_states(const CallArguments& call, Communicator& inner, Scratch& scratch) {
  const bool gathers = call.operation == Operation::kAllReduce;
  const int ranks = context_.group.world_size();
  const int me = context_.group.rank();
  const std::uint64_t own = counts_[static_cast<std::size_t>(me)];
  const std::uint64_t begin = std::accumulate(counts_.begin(), counts_.begin() + me, std::uint64_t{0});
  const ConstTensor own_values =
      gathers ? gather_half_.keep_contribution(call.input, call.op, scratch) : ConstTensor(call.input.type, {});
  copy(slice(call.input, {begin, begin + own}), states_.copy_of(me));
  const ConstTensor sent = coded_contribution(states_.difference(call.input, scratch), scratch);
  const Tensor received = scratch.take(Scratch::Slot::kReceived, call.input, static_cast<std::uint64_t>(ranks) * own);
  const std::vector<std::uint64_t> from_each(static_cast<std::size_t>(ranks), own);
  inner.all_to_all(sent, counts_, received, from_each, call.message);
  const Tensor results = gathers ? slice(call.output, {begin, begin + own}) : call.output;
  for (int source = 0; source < ranks; ++source) {
    const Tensor copied = states_.copy_of(source);
    const std::uint64_t first = static_cast<std::uint64_t>(source) * own;
    const ConstTensor difference = slice(ConstTensor(received), {first, first + own});
    sim::PacketMask* lost = lost_contributions_.of(static_cast<std::size_t>(source));
    if (lost != nullptr && context_.network.reduce.selection == LossSelection::kLargestNorm) {
      adversary_.hit(*lost, difference, own_part_);
    }
    if (source != me) reduce_delivered(ReduceOp::kSum, difference, copied, lost, own_part_);
    if (source == 0) {
      copy(copied, results);
    } else {
      reduce_delivered(ReduceOp::kSum, copied, results, nullptr, own_part_);
    }
  }
  if (call.op == ReduceOp::kMean) divide(results, ranks);
  change_estimates(sent, inner);
  if (!gathers) return;
  code_results(results, call.op);
  inner.all_gather(results, call.output, counts_, call.message);
  gather_half_.lose_results(call.output, counts_, own_values);
}

// Owners tell each source the packets that they miss, if the class has acknowledgements.
void DirectPath::change_estimates(ConstTensor sent, Communicator& inner) {
  const auto ranks = static_cast<std::size_t>(context_.group.world_size());
  const auto me = static_cast<std::size_t>(context_.group.rank());
  std::vector<std::uint64_t> words_of(ranks);
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    words_of[owner] = mask_words(context_.packets(sent.type, counts_[owner]));
  }
  std::vector<std::uint64_t> acknowledged(std::accumulate(words_of.begin(), words_of.end(), std::uint64_t{0}));
  if (context_.network.recovery.error_feedback == ClassRecovery::ErrorFeedback::kEf21Acknowledged) {
    std::vector<std::uint64_t> missing(ranks * words_of[me]);
    for (std::size_t source = 0; source < ranks; ++source) {
      const sim::PacketMask* lost = lost_contributions_.of(source);
      if (lost != nullptr)
        std::ranges::copy(lost->words(), missing.begin() + static_cast<std::ptrdiff_t>(source * words_of[me]));
    }
    inner.all_to_all(ConstTensor(std::span<const std::uint64_t>(missing)),
                     std::vector<std::uint64_t>(ranks, words_of[me]), Tensor(std::span(acknowledged)), words_of,
                     kAcknowledgement);
  }
  std::uint64_t begin = 0;
  std::size_t first_word = 0;
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    const sim::ElementRange part{begin, begin + counts_[owner]};
    const sim::Packetizer packets = context_.packets(sent.type, part.size());
    sim::PacketMask missing(packets.packets());
    add_missing(std::span(acknowledged).subspan(first_word, words_of[owner]), missing);
    begin = part.end;
    first_word += words_of[owner];
    if (owner != me)
      reduce_delivered(ReduceOp::kSum, slice(sent, part), slice(states_.estimate(), part), &missing, packets);
  }
}

EndErrors DirectPath::compare_ends(Communicator& inner) {
  if (!context_.network.recovery.keeps_states()) return {};
  const auto me = static_cast<std::size_t>(context_.group.rank());
  const std::vector<std::uint64_t> from_each(counts_.size(), counts_[me]);
  return states_.compare(static_cast<int>(me), [&](ConstTensor estimate, Tensor copies) {
    inner.all_to_all(estimate, counts_, copies, from_each, kAcknowledgement);
  });
}

void DirectPath::run(const CallArguments& call, Communicator& inner, Scratch& scratch) {
  const bool gathers = call.operation == Operation::kAllReduce;
  if (!reduces(call.operation)) return gather_half_.run(call, inner, scratch);
  if (context_.network.recovery.keeps_states()) return run_with_states(call, inner, scratch);
  const ConstTensor own_values =
      gathers ? gather_half_.keep_contribution(call.input, call.op, scratch) : ConstTensor(call.input.type, {});
  const ConstTensor corrected = context_.feeds_back() ? feedback_.correct(call.input, scratch) : call.input;
  const ConstTensor sent = coder_ ? coded_contribution(corrected, scratch) : corrected;
  Part part(*this, call);
  if (gathers && coder_) {
    const auto me = counts_.begin() + context_.group.rank();
    const std::uint64_t begin = std::accumulate(counts_.begin(), me, std::uint64_t{0});
    const Tensor results = slice(call.output, {begin, begin + *me});
    inner.reduce_scatter_with(sent, results, counts_, part, call.message);
    code_results(results, call.op);
    inner.all_gather(results, call.output, counts_, call.message);
  } else if (gathers) {
    inner.all_reduce_with(sent, call.output, part, call.message);
  } else {
    inner.reduce_scatter_with(sent, call.output, call.counts, part, call.message);
  }
  if (context_.feeds_back()) note_undelivered(sent);
  if (gathers && lost_results_by_ == LostResults::kByReceiver) {
    gather_half_.lose_results(call.output, counts_, own_values);
  }
}

}  // namespace droptest::comm
