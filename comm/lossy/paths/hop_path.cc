// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/hop_path.h"

#include <algorithm>
#include <array>
#include <string>

#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"

namespace droptest::comm {

HopPath::HopPath(const PathContext& context)
    : context_(context), messages_(context.messages()), gather_half_(context) {}

void HopPath::add_memory(const SizedCall& call, CallMemory& memory) {
  const CallShape& shape = call.shape;
  if (shape.operation == Operation::kAllToAll) return;
  PathMessages messages(call.network, path_in(call.network, shape.elements), call.ranks);
  const sim::HopSchedule& hops = messages.cut(shape).hops;
  const int reduce_rounds = hops.reduce_rounds();
  const bool has_results = hops.rounds() > reduce_rounds;
  const bool buffers_results = buffers(call.network, sim::Half::kGather);
  // The elements that each rank receives: into a buffer in this round, and in all rounds of the reduce half.
  std::vector<std::uint64_t> buffered(static_cast<std::size_t>(call.ranks));
  std::vector<std::uint64_t> reduced(buffered.size());
  std::uint64_t most_buffered = 0;
  int round = 0;
  messages.visit(shape, [&](const PathMessage& message) {
    if (message.round != round) std::ranges::fill(buffered, 0);
    round = message.round;
    const auto rank = static_cast<std::size_t>(message.destination);
    if (message.half == sim::Half::kReduce || buffers_results) buffered[rank] += message.elements.size();
    if (round < reduce_rounds) reduced[rank] += message.elements.size();
    most_buffered = std::max(most_buffered, buffered[rank]);
  });
  const bool scatters = shape.operation == Operation::kReduceScatter;
  memory.take(CallMemory::Slot::kReceived, most_buffered);
  const bool keeps_input = buffers_results && reduces(shape.operation) && has_results;  // if it is a mean
  memory.take(CallMemory::Slot::kInputCopy, keeps_input ? shape.elements : 0);
  if (scatters) memory.take(CallMemory::Slot::kPart, shape.elements);
  if (call.remembers_contributions()) memory.remembered += *std::ranges::max_element(reduced);
  if (scatters && call.remembers_results()) memory.remembered += shape.elements;
}

void HopPath::plan_memories(const CallArguments& call) {
  using Use = StaleMemory::Use;
  const ConstTensor like(call.output.type, {}, call.output.stream);
  const HalfNetwork& reduce = context_.network.reduce;
  const HalfNetwork& gather = context_.network.gather;
  last_sums_ = last_values_ = {call.output.type, {}};
  if (cut_->hops.reduce_rounds() > 0 && can_lose(reduce) && reduce.rule().remembers()) {
    std::uint64_t received = 0;
    for (int round = 0; round < cut_->hops.reduce_rounds(); ++round) {
      receives_.clear();
      cut_->hops.receives(round, context_.group.rank(), receives_);
      for (const sim::Hop& hop : receives_) received += cut_->elements(hop).size();
    }
    const bool scatters = call.operation == Operation::kReduceScatter;
    last_sums_ = context_.stale.of(scatters ? Use::kReduceScatterContributions : Use::kReduceContributions,
                                   call.message, like, received, cut_->begins);
  }
  if (!can_lose(gather) || !gather.rule().remembers()) return;
  const Use use = call.operation == Operation::kAllReduce       ? Use::kAllReduceResult
                  : call.operation == Operation::kReduceScatter ? Use::kReduceScatterResult
                  : call.operation == Operation::kAllGather     ? Use::kAllGather
                                                                : Use::kBroadcast;
  const int root = call.operation == Operation::kBroadcast ? call.peer : -1;
  last_values_ = context_.stale.of(use, call.message, like, cut_->begins.back(), cut_->begins, root);
}

void HopPath::plan(const CallArguments& call, CallFates& fates) {
  if (is_one_hop(call)) return gather_half_.plan(call, messages_, fates);
  if (reduces(call.operation)) {
    check_reduction(context_.network.reduce.fill, call.op, call.input.type, call.message);
  }
  const CallShape shape = shape_of(call);
  cut_.emplace(messages_.cut(shape));
  plan_memories(call);
  factors_.clear();
  std::size_t received = 0;
  messages_.visit_of(shape, context_.group.rank(), [&](const PathMessage& message) {
    lost_.take(context_, call.message.traffic_class, fates, message, Interest::kNone, received);
    if (message.destination != context_.group.rank()) return;
    ++received;
    if (context_.network.reduce.rule().scale != FillRule::Scale::kByRate) return;
    const sim::Link link = context_.link_of(call.message.traffic_class, message);
    const double arrives =
        message.half == sim::Half::kReduce ? 1 - context_.ledger.missing_rate(link, message.packets.packets()) : 1;
    factors_.push_back(arrives > 0 ? 1 / arrives : 1);
  });
}

bool HopPath::counts_travel() const {
  const HalfNetwork& half = context_.network.reduce;
  return can_lose(half) && half.rule().scale == FillRule::Scale::kByCount;
}

void HopPath::carry_out(Run& run) {
  const bool counting = cut_->hops.reduce_rounds() > 0 && counts_travel();
  if (counting) counts_.start(run.work.count_elems());
  for (int round = 0; round < cut_->hops.rounds(); ++round) {
    if (round == cut_->hops.reduce_rounds()) end_sums(run);
    hops_of(round, &sim::HopSchedule::sends, sends_);
    hops_of(round, &sim::HopSchedule::receives, receives_);
    if (counting && round < cut_->hops.reduce_rounds()) exchange_counts(run);
    exchange_values(run);
    for (std::size_t i = 0; i < receives_.size(); ++i, ++run.messages_received) {
      const sim::Hop& hop = receives_[i];
      if (hop.half == sim::Half::kGather) {
        take_value(run, hop, incoming_[i].data);
      } else {
        add_sum(run, hop, incoming_[i].data, counting ? received_counts_[i] : std::vector<CountRun>());
      }
    }
  }
  if (cut_->hops.rounds() == cut_->hops.reduce_rounds()) end_sums(run);
}

// This rank has the sums of the parts that it owns, and partial sums of the others.
void HopPath::end_sums(const Run& run) {
  if (cut_->hops.reduce_rounds() == 0) return;
  for (int part = 0; run.call.op == ReduceOp::kMean && part < cut_->hops.parts(); ++part) {
    const sim::ElementRange range{cut_->begins[static_cast<std::size_t>(part)],
                                  cut_->begins[static_cast<std::size_t>(part) + 1]};
    if (cut_->hops.owner(part) == context_.group.rank()) {
      divide(slice(run.work, range), context_.group.world_size());
    } else if (!run.contribution.bytes.empty()) {
      copy(slice(run.contribution, range), slice(run.work, range));
    }
  }
  if (counts_travel()) rescale_owned(run);
}

// Drops the hops without elements; both ends drop the same ones.
void HopPath::hops_of(int round, HopsOfRank which, std::vector<sim::Hop>& hops) const {
  hops.clear();
  (cut_->hops.*which)(round, context_.group.rank(), hops);
  std::erase_if(hops, [this](const sim::Hop& hop) { return cut_->elements(hop).size() == 0; });
}

// Partial sums are received into a buffer, and so are values that this rank's own may replace. Other values are
// received into the work.
bool HopPath::buffers(const ClassNetwork& network, sim::Half half) {
  return half == sim::Half::kReduce || (can_lose(network.gather) && network.gather.rule().keeps_own());
}

void HopPath::exchange_values(const Run& run) {
  std::uint64_t buffer_elems = 0;
  for (const sim::Hop& hop : receives_)
    buffer_elems += buffers(context_.network, hop.half) ? cut_->elements(hop).size() : 0;
  const Tensor buffer = run.scratch.take(Scratch::Slot::kReceived, run.work, buffer_elems);
  outgoing_.clear();
  incoming_.clear();
  for (const sim::Hop& hop : sends_) {
    outgoing_.push_back({slice(run.work, cut_->elements(hop)), hop.destination, run.call.message});
  }
  std::uint64_t begin = 0;
  for (const sim::Hop& hop : receives_) {
    const sim::ElementRange range = cut_->elements(hop);
    const bool is_buffered = buffers(context_.network, hop.half);
    const Tensor to = is_buffered ? slice(buffer, {begin, begin + range.size()}) : slice(run.work, range);
    if (is_buffered) begin += range.size();
    incoming_.push_back({to, hop.source, run.call.message});
  }
  run.inner.exchange(outgoing_, incoming_);
}

void HopPath::add_sum(Run& run, const sim::Hop& hop, Tensor received, const std::vector<CountRun>& sent_counts) {
  const sim::ElementRange range = cut_->elements(hop);
  const Tensor work = slice(run.work, range);
  const sim::PacketMask* lost = lost_.of(run.messages_received);
  const sim::Packetizer packets = context_.packets(received.type, received.count_elems());
  const ReduceOp op = run.call.op == ReduceOp::kMean ? ReduceOp::kSum : run.call.op;
  if (!sent_counts.empty()) add_counts(range, sent_counts, lost, packets);
  if (!last_sums_.bytes.empty()) {
    const Tensor last = slice(last_sums_, {run.sums_received, run.sums_received + range.size()});
    run.sums_received += range.size();
    copy_delivered(received, last, lost, packets);
    return reduce_delivered(op, last, work, nullptr, packets);
  }
  const double factor = factors_.empty() ? 1 : factors_[run.messages_received];
  if (factor != 1) scale(received, factor);
  reduce_delivered(op, received, work, lost, packets);
}

void HopPath::take_value(Run& run, const sim::Hop& hop, Tensor received) {
  const sim::ElementRange range = cut_->elements(hop);
  const Tensor work = slice(run.work, range);
  const sim::PacketMask* lost = lost_.of(run.messages_received);
  const sim::Packetizer packets = context_.packets(work.type, range.size());
  if (buffers(context_.network, hop.half)) return copy_delivered(received, work, lost, packets);
  const Tensor last = last_values_.bytes.empty() ? last_values_ : slice(last_values_, range);
  gather_half_.fill(work, lost, packets, {work.type, {}}, last);
}

void HopPath::rescale_owned(const Run& run) {
  const auto ranks = static_cast<std::uint64_t>(context_.group.world_size());
  for (int part = 0; part < cut_->hops.parts(); ++part) {
    if (cut_->hops.owner(part) != context_.group.rank()) continue;
    std::uint64_t begin = cut_->begins[static_cast<std::size_t>(part)];
    for (const CountRun& counted : counts_.of({begin, cut_->begins[static_cast<std::size_t>(part) + 1]})) {
      const sim::ElementRange range{begin, begin + counted.elems};
      begin = range.end;
      if (counted.contributions == ranks) continue;
      scale(slice(run.work, range), static_cast<double>(ranks) / static_cast<double>(counted.contributions));
    }
  }
}

// Counts are part of the packets of their elements: they use up no packets, and are lost with them. The first word is
// odd if it holds the count of all elements, and even if it holds the number of runs that follow. Counts are in host
// memory, so they cannot travel in one message with values on a device.
void HopPath::exchange_counts(const Run& run) {
  using Words = std::vector<std::uint64_t>;
  std::vector<Words> first_sent;
  std::vector<Words> runs_sent(sends_.size());
  std::vector<Words> first_received(receives_.size(), Words(1));
  std::vector<Words> runs_received(receives_.size());
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    const std::vector<CountRun> runs = counts_.of(cut_->elements(sends_[i]));
    first_sent.push_back({runs.size() == 1 ? runs[0].contributions << 1 | 1 : runs.size() << 1});
    if (runs.size() == 1) continue;
    for (const CountRun& counted : runs)
      runs_sent[i].insert(runs_sent[i].end(), {counted.elems, counted.contributions});
  }
  const auto exchange = [&](const std::vector<Words>& sent, std::vector<Words>& received) {
    outgoing_.clear();
    incoming_.clear();
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (sent[i].empty()) continue;
      outgoing_.push_back(
          {ConstTensor(std::span<const std::uint64_t>(sent[i])), sends_[i].destination, run.call.message});
    }
    for (std::size_t i = 0; i < received.size(); ++i) {
      if (received[i].empty()) continue;
      incoming_.push_back({Tensor(std::span(received[i])), receives_[i].source, run.call.message});
    }
    run.inner.exchange(outgoing_, incoming_);
  };
  exchange(first_sent, first_received);
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    const std::uint64_t first = first_received[i][0];
    if ((first & 1) == 0) runs_received[i].resize(2 * (first >> 1));
  }
  exchange(runs_sent, runs_received);
  received_counts_.assign(receives_.size(), {});
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    const Words& words = runs_received[i];
    if (words.empty()) received_counts_[i] = {{cut_->elements(receives_[i]).size(), first_received[i][0] >> 1}};
    for (std::size_t w = 0; w < words.size(); w += 2) received_counts_[i].push_back({words[w], words[w + 1]});
  }
}

// Lost packets add nothing.
void HopPath::add_counts(sim::ElementRange elements, const std::vector<CountRun>& sent, const sim::PacketMask* lost,
                         const sim::Packetizer& packets) {
  std::vector<CountRun> arrived;
  PacketRunCursor cursor(lost, packets);
  PacketRun fate;
  std::uint64_t begin = 0;
  std::uint64_t fate_end = 0;
  for (const CountRun& run : sent) {
    for (const std::uint64_t end = begin + run.elems; begin < end;) {
      if (begin == fate_end) {
        DROPTEST_CHECK(cursor.next(fate), "more counts than elements");
        fate_end = fate.elements.end;
      }
      const std::uint64_t until = std::min(end, fate_end);
      arrived.push_back({until - begin, fate.fate == PacketRun::Fate::kLost ? 0 : run.contributions});
      begin = until;
    }
  }
  counts_.add(elements, arrived);
}

void HopPath::run(const CallArguments& call, Communicator& inner, Scratch& scratch) {
  if (is_one_hop(call)) return gather_half_.run(call, inner, scratch);
  const bool scatters = call.operation == Operation::kReduceScatter;
  const Tensor work = scatters ? scratch.take(Scratch::Slot::kPart, call.input, call.input.count_elems()) : call.output;
  const auto mine = static_cast<std::size_t>(context_.group.rank());
  if (call.operation == Operation::kAllGather) {
    copy(call.input, slice(work, {cut_->begins[mine], cut_->begins[mine + 1]}));
  } else if (call.operation != Operation::kBroadcast) {
    copy(call.input, work);
  }
  ConstTensor contribution{call.input.type, {}};
  const bool has_results = cut_->hops.rounds() > cut_->hops.reduce_rounds();
  if (call.op == ReduceOp::kMean && has_results) {
    contribution = gather_half_.keep_contribution(call.input, call.op, scratch);
  }
  Run run{call, inner, scratch, work, contribution};
  carry_out(run);
  if (scatters) copy(slice(work, {cut_->begins[mine], cut_->begins[mine + 1]}), call.output);
}

}  // namespace droptest::comm
