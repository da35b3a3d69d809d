// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/contribution_path.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "comm/lossy/fill/packet_runs.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// Smallest all-reduce that runs in parts: a copy of fewer bytes costs less than another exchange.
constexpr std::size_t kBytesWorthParts = 65536;

}  // namespace

ContributionPath::ContributionPath(const PathContext& context)
    : context_(context), messages_(context.messages()), gather_half_(context) {}

void ContributionPath::add_memory(const SizedCall& call, CallMemory& memory) {
  if (call.shape.operation == Operation::kReduceScatter) memory.take(CallMemory::Slot::kMasked, call.shape.elements);
  if (call.remembers_contributions()) memory.remembered += call.shape.elements;
}

ContributionPath::Parts ContributionPath::parts_of(const CallArguments& call) const {
  using PartReductions = Communicator::PartReductions;
  const HalfNetwork& half = context_.network.reduce;
  const bool fits = call.operation == Operation::kAllReduce && call.op != ReduceOp::kMax && !context_.feeds_back() &&
                    call.message.lost == nullptr && half.rule().source == FillRule::Source::kZero &&
                    half.rule().scale != FillRule::Scale::kByRate;
  if (!fits) return Parts::kNone;
  const PartReductions offered = context_.group.part_reductions();
  if (offered == PartReductions::kInPlace) return Parts::kOfShownFates;
  return offered == PartReductions::kAsFast && call.input.bytes.size() >= kBytesWorthParts ? Parts::kOfDrawnFates
                                                                                           : Parts::kNone;
}

// Takes another rank's contribution. Each rank with kOfShownFates reads the fates that the others drew for their own.
void ContributionPath::take_other(const CallArguments& call, const PathMessage& message, CallFates& fates) {
  const auto source = static_cast<std::size_t>(message.source);
  const sim::TrafficClass traffic_class = call.message.traffic_class;
  if (parts_ != Parts::kNone) {
    const Interest of_others = parts_ == Parts::kOfDrawnFates ? Interest::kFates : Interest::kNone;
    return lost_by_source_.take(context_, traffic_class, fates, message, of_others, source);
  }
  const bool lost = context_.ledger.draw_message(fates, context_.link_of(traffic_class, message), packets_,
                                                 Tally::kOtherEnd, others_lost_);
  lost_contributions_.add(lost ? &others_lost_ : nullptr);
  if (call.message.lost != nullptr && lost) {
    std::ranges::transform(without_others_.words(), others_lost_.words(), without_others_.words().begin(),
                           std::bit_and<>());
  } else if (call.message.lost != nullptr) {
    without_others_.resize(packets_.packets());
  }
}

void ContributionPath::plan_messages(const CallArguments& call, CallFates& fates) {
  const int me = context_.group.rank();
  parts_ = parts_of(call);
  lost_contributions_.start(parts_ == Parts::kNone ? packets_.packets() : 0);
  lost_by_source_.start(static_cast<std::size_t>(context_.group.world_size()));
  lost_.start(2);
  if (call.message.lost != nullptr) {
    without_others_.resize(packets_.packets());
    for (std::uint64_t packet = 0; packet < packets_.packets(); ++packet) without_others_.set_lost(packet);
  }
  messages_.visit_of(shape_of(call), me, [&](const PathMessage& message) {
    const bool is_result = message.half == sim::Half::kGather;
    if (!is_result && message.source != me) return take_other(call, message, fates);
    const Interest of_others = message.to_all ? Interest::kFates : Interest::kNone;
    lost_.take(context_, call.message.traffic_class, fates, message, of_others, is_result ? 1 : 0);
    if (!is_result && parts_ == Parts::kNone) lost_contributions_.add(lost_.of(0));
  });
}

void ContributionPath::plan(const CallArguments& call, CallFates& fates) {
  const bool is_all_reduce = call.operation == Operation::kAllReduce;
  if (!reduces(call.operation)) return gather_half_.plan(call, messages_, fates);
  using Use = StaleMemory::Use;
  const HalfNetwork& half = context_.network.reduce;
  packets_ = context_.packets(call.input.type, call.input.count_elems());
  check_reduction(half.fill, call.op, call.input.type, call.message);
  if (context_.feeds_back()) {
    feedback_.plan(context_.stale, call.input, call.op,
                   is_all_reduce ? Use::kAllReduceFeedback : Use::kReduceScatterFeedback, call.counts, call.message);
  }
  last_contributions_ = {call.input.type, {}};
  if (can_lose(half) && half.rule().remembers()) {
    last_contributions_ =
        context_.stale.of(is_all_reduce ? Use::kReduceContributions : Use::kReduceScatterContributions, call.message,
                          call.input, call.input.count_elems(), call.counts);
  }
  if (is_all_reduce && can_lose_results()) {
    last_results_ = gather_half_.memory(StaleMemory::Use::kAllReduceResult, call.message, call.output, {});
  }
  plan_messages(call, fates);
}

// This rank's contribution at the aggregation point. If no packet is lost, it is the input itself (after error
// feedback). Otherwise it is a copy in `masked`, in which lost packets are neutral. `masked` may be the input. Under
// the fill `stale` it is always the memory of the last arrived values, in which the packets that arrive now are
// replaced.
ConstTensor ContributionPath::arriving(const CallArguments& call, Tensor masked, Scratch& scratch) {
  ConstTensor input = call.input;
  if (context_.feeds_back()) input = feedback_.correct(input, scratch);
  if (!can_lose(context_.network.reduce)) return input;
  const sim::PacketMask* lost = lost_.of(0);
  if (context_.feeds_back()) feedback_.undelivered(0, input, lost, packets_);
  if (!last_contributions_.bytes.empty()) {
    copy_delivered(input, last_contributions_, lost, packets_);
    return last_contributions_;
  }
  if (lost == nullptr) return input;
  copy_delivered(input, masked, lost, packets_);
  call.op == ReduceOp::kMax ? lowest_lost(masked, lost, packets_) : zero_lost(masked, lost, packets_);
  return masked;
}

// Lives on the stack of the thread that runs its call. If the parts are kOfShownFates, each rank has drawn the fates of
// its own contribution, and reads the fates of the others from their Parts.
class ContributionPath::Part final : public PartReduction {
 public:
  Part(ContributionPath& path, const CallArguments& call, const DeliveredReduction::Scaling& scaling)
      : lost_(path.lost_.of(0)), path_(path), call_(call), scaling_(scaling) {}

  void reduce(std::span<const std::byte* const> contributions, std::span<std::byte* const> results,
              std::span<const PartReduction* const> reductions) override {
    const bool shown = path_.parts_ == Parts::kOfShownFates;
    DROPTEST_CHECK(!shown || reductions.size() == contributions.size(), "reductions out of sight");
    const auto me = static_cast<std::size_t>(path_.context_.group.rank());
    for (std::size_t source = 0; source < contributions.size(); ++source) {
      const sim::PacketMask* lost = source == me ? lost_
                                    : shown      ? dynamic_cast<const Part&>(*reductions[source]).lost_
                                                 : path_.lost_by_source_.of(source);
      path_.delivered_.lose(static_cast<int>(source), lost);
    }
    path_.delivered_.reduce(call_.op, call_.input, scaling_, contributions, results);
  }

 private:
  const sim::PacketMask* lost_;  // losses of this rank's contribution
  ContributionPath& path_;
  const CallArguments& call_;
  DeliveredReduction::Scaling scaling_;
};

void ContributionPath::all_reduce_in_parts(const CallArguments& call, Communicator& inner) {
  const int ranks = context_.group.world_size();
  const std::vector<std::uint64_t> counts = even_counts(call.input.count_elems(), ranks);
  const auto mine = counts.begin() + context_.group.rank();
  const std::uint64_t begin = std::accumulate(counts.begin(), mine, std::uint64_t{0});
  delivered_.start(packets_, ranks, {begin, begin + *mine});
  DeliveredReduction::Scaling scaling;
  if (context_.network.reduce.rule().scale == FillRule::Scale::kByCount) {
    scaling.sums = DeliveredReduction::Scaling::Sums::kByCount;
  }
  Part part(*this, call, scaling);
  inner.all_reduce_with(call.input, call.output, part, call.message);
}

void ContributionPath::finish(Tensor results, std::uint64_t first_element, ReduceOp op) {
  const HalfNetwork& half = context_.network.reduce;
  if (!can_lose(half)) return;
  const FillRule& rule = half.rule();
  if (rule.scale == FillRule::Scale::kByCount) {
    lost_contributions_.rescale(results, first_element, packets_, context_.group.world_size());
  } else if (rule.scale == FillRule::Scale::kByRate) {
    scale(results, inverse_probability_factor(half, packets_.packets()));
  } else if (rule == FillRule{} && op == ReduceOp::kMax) {
    lost_contributions_.zero_where_all_lost(results, first_element, packets_, context_.group.world_size());
  }
}

void ContributionPath::report_lost(std::vector<sim::ElementRange>& lost) const {
  sim::PacketMask any = without_others_;
  for (const std::size_t message : {std::size_t{0}, std::size_t{1}}) {
    if (message == 1 && !can_lose_results()) continue;
    const sim::PacketMask* const of_message = lost_.of(message);
    if (of_message == nullptr) continue;
    std::ranges::transform(any.words(), of_message->words(), any.words().begin(), std::bit_or<>());
  }
  append_lost(any.any_lost() ? &any : nullptr, packets_, 0, lost);
}

void ContributionPath::run(const CallArguments& call, Communicator& inner, Scratch& scratch) {
  if (call.operation == Operation::kReduceScatter) {
    const Tensor masked = scratch.take(Scratch::Slot::kMasked, call.input, call.input.count_elems());
    inner.reduce_scatter(arriving(call, masked, scratch), call.output, call.counts, call.op, call.message);
    const auto mine = call.counts.begin() + context_.group.rank();
    return finish(call.output, std::accumulate(call.counts.begin(), mine, std::uint64_t{0}), call.op);
  }
  if (call.operation != Operation::kAllReduce) return gather_half_.run(call, inner, scratch);
  const ConstTensor own_values = gather_half_.keep_contribution(call.input, call.op, scratch);
  if (parts_ != Parts::kNone) {
    all_reduce_in_parts(call, inner);
  } else {
    // The output is overwritten in any case, so it can hold the masked contribution: a call in place copies nothing.
    inner.all_reduce(arriving(call, call.output, scratch), call.output, call.op, call.message);
    finish(call.output, 0, call.op);
  }
  if (can_lose_results()) gather_half_.fill(call.output, lost_.of(1), packets_, own_values, last_results_);
  if (call.message.lost != nullptr) report_lost(*call.message.lost);
}

}  // namespace droptest::comm
