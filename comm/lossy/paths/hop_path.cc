// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/hop_path.h"

#include <algorithm>
#include <array>
#include <string>

#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "sim/error.h"

namespace droptest::comm {

HopPath::HopPath(const PathContext& context, ScheduleMaker make_schedule)
    : context_(context), make_schedule_(make_schedule), fates_(context), one_hop_(context, Consistency::kPerReceiver) {}

const sim::HopSchedule& HopPath::schedule(sim::Collective collective, int root) {
  const auto index = static_cast<std::size_t>(collective) + static_cast<std::size_t>(root);
  if (schedules_.size() <= index) schedules_.resize(index + 1);
  if (schedules_[index] == nullptr) {
    schedules_[index] = make_schedule_({collective, context_.inner.world_size(), root, context_.network.group_ranks});
  }
  return *schedules_[index];
}

void HopPath::cut(const sim::HopSchedule& schedule, std::span<const std::uint64_t> counts) {
  DROPTEST_CHECK(counts.size() == static_cast<std::size_t>(schedule.parts()), "one count for each part");
  begins_.assign(1, 0);
  for (const std::uint64_t count : counts) begins_.push_back(begins_.back() + count);
}

sim::ElementRange HopPath::elements(const sim::Hop& hop) const {
  return {begins_[static_cast<std::size_t>(hop.first_part)], begins_[static_cast<std::size_t>(hop.end_part)]};
}

Tensor HopPath::memory_of_sums(StaleMemory::Use use, const sim::HopSchedule& schedule, ConstTensor like,
                               const Message& message) {
  const HalfNetwork& half = context_.network.reduce;
  if (!can_lose(half) || half.fill != Fill::kStale) return {like.type, {}};
  std::uint64_t received = 0;
  for (int round = 0; round < schedule.reduce_rounds(); ++round) {
    receives_.clear();
    schedule.receives(round, context_.inner.rank(), receives_);
    for (const sim::Hop& hop : receives_) received += elements(hop).size();
  }
  return context_.stale.of(use, message, like, received, begins_);
}

bool HopPath::counts_travel() const {
  const HalfNetwork& half = context_.network.reduce;
  return can_lose(half) && half.fill == Fill::kCountRescale;
}

void HopPath::carry_out(Run& run) {
  const sim::HopSchedule& schedule = run.schedule;
  const bool counting = schedule.reduce_rounds() > 0 && counts_travel();
  if (counting) counts_.start(run.work.count_elems());
  for (int round = 0; round < schedule.rounds(); ++round) {
    if (counting && round == schedule.reduce_rounds()) rescale_owned(run);
    hops_of(run, round, &sim::HopSchedule::sends, sends_);
    hops_of(run, round, &sim::HopSchedule::receives, receives_);
    if (counting && round < schedule.reduce_rounds()) exchange_counts(run);
    exchange_values(run);
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      const sim::Hop& hop = receives_[i];
      if (hop.half == sim::Half::kGather) {
        take_value(run, hop, incoming_[i].data);
      } else {
        add_sum(run, hop, incoming_[i].data, counting ? received_counts_[i] : std::vector<CountRun>());
      }
    }
  }
  if (counting && schedule.rounds() == schedule.reduce_rounds()) rescale_owned(run);
}

// Both ends know of hops that have nothing to send.
void HopPath::hops_of(const Run& run, int round, HopsOfRank which, std::vector<sim::Hop>& hops) const {
  hops.clear();
  (run.schedule.*which)(round, context_.inner.rank(), hops);
  std::erase_if(hops, [this](const sim::Hop& hop) { return elements(hop).size() == 0; });
}

// Partial sums, and values of which this rank may keep its own, do not come straight into the work.
bool HopPath::comes_beside(const sim::Hop& hop) const {
  const HalfNetwork& gather = context_.network.gather;
  return hop.half == sim::Half::kReduce || (can_lose(gather) && gather.fill == Fill::kOwn);
}

void HopPath::exchange_values(const Run& run) {
  std::uint64_t beside_elems = 0;
  for (const sim::Hop& hop : receives_) beside_elems += comes_beside(hop) ? elements(hop).size() : 0;
  const Tensor beside = context_.scratch.take(Scratch::Slot::kReceived, run.work, beside_elems);
  outgoing_.clear();
  incoming_.clear();
  for (const sim::Hop& hop : sends_) {
    outgoing_.push_back({slice(run.work, elements(hop)), hop.destination, run.message});
  }
  std::uint64_t begin = 0;
  for (const sim::Hop& hop : receives_) {
    const sim::ElementRange range = elements(hop);
    const bool is_beside = comes_beside(hop);
    const Tensor to = is_beside ? slice(beside, {begin, begin + range.size()}) : slice(run.work, range);
    if (is_beside) begin += range.size();
    incoming_.push_back({to, hop.source, run.message});
  }
  context_.inner.exchange(outgoing_, incoming_);
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    fates_.sent(sends_[i].half, sends_[i].destination, outgoing_[i].data, run.message);
  }
}

void HopPath::add_sum(Run& run, const sim::Hop& hop, Tensor received, const std::vector<CountRun>& sent_counts) {
  const sim::ElementRange range = elements(hop);
  const Tensor work = slice(run.work, range);
  const sim::PacketMask* lost = fates_.lost(hop.half, hop.source, received, run.message);
  const sim::Packetizer packets = fates_.packets(received);
  if (!sent_counts.empty()) add_counts(range, sent_counts, lost, packets);
  if (!run.last_sums.bytes.empty()) {
    const Tensor last = slice(run.last_sums, {run.sums_received, run.sums_received + range.size()});
    run.sums_received += range.size();
    copy_delivered(received, last, lost, packets);
    return reduce_delivered(run.op, last, work, nullptr, packets);
  }
  double factor = 1;
  if (context_.network.reduce.fill == Fill::kInverseProbability) {
    const double arrives = 1 - fates_.missing_rate(hop.half, hop.source, received, run.message);
    if (arrives > 0) factor = 1 / arrives;
  }
  if (factor != 1) scale(received, factor);
  reduce_delivered(run.op, received, work, lost, packets);
}

void HopPath::take_value(Run& run, const sim::Hop& hop, Tensor received) {
  const sim::ElementRange range = elements(hop);
  const Tensor work = slice(run.work, range);
  const sim::PacketMask* lost = fates_.lost(hop.half, hop.source, received, run.message);
  if (comes_beside(hop)) return copy_delivered(received, work, lost, fates_.packets(work));
  const Tensor last = run.last_values.bytes.empty() ? run.last_values : slice(run.last_values, range);
  one_hop_.fill(work, lost, fates_.packets(work), {work.type, {}}, last);
}

void HopPath::rescale_owned(Run& run) {
  const auto ranks = static_cast<std::uint64_t>(context_.inner.world_size());
  for (int part = 0; part < run.schedule.parts(); ++part) {
    if (run.schedule.owner(part) != context_.inner.rank()) continue;
    std::uint64_t begin = begins_[static_cast<std::size_t>(part)];
    for (const CountRun& counted : counts_.of({begin, begins_[static_cast<std::size_t>(part) + 1]})) {
      const sim::ElementRange range{begin, begin + counted.elems};
      begin = range.end;
      if (counted.contributions == ranks) continue;
      scale(slice(run.work, range), static_cast<double>(ranks) / static_cast<double>(counted.contributions));
    }
  }
}

// Counts are part of the packets that they belong to: they use up no packets, and are lost with them. The word that
// goes first is odd where it is the count of all elements; an even one says how many runs follow. In host memory, so
// that they cannot go with the values.
void HopPath::exchange_counts(const Run& run) {
  using Words = std::vector<std::uint64_t>;
  std::vector<Words> first_sent;
  std::vector<Words> runs_sent(sends_.size());
  std::vector<Words> first_received(receives_.size(), Words(1));
  std::vector<Words> runs_received(receives_.size());
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    const std::vector<CountRun> runs = counts_.of(elements(sends_[i]));
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
      outgoing_.push_back({ConstTensor(std::span<const std::uint64_t>(sent[i])), sends_[i].destination, run.message});
    }
    for (std::size_t i = 0; i < received.size(); ++i) {
      if (received[i].empty()) continue;
      incoming_.push_back({Tensor(std::span(received[i])), receives_[i].source, run.message});
    }
    context_.inner.exchange(outgoing_, incoming_);
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
    if (words.empty()) received_counts_[i] = {{elements(receives_[i]).size(), first_received[i][0] >> 1}};
    for (std::size_t w = 0; w < words.size(); w += 2) received_counts_[i].push_back({words[w], words[w + 1]});
  }
}

// What was lost adds nothing.
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

void HopPath::all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) {
  check_reduction(context_.network.reduce.fill, op, input.type, message);
  const sim::HopSchedule& hops = schedule(sim::Collective::kAllReduce);
  cut(hops, even_counts(input.count_elems(), hops.parts()));
  copy(input, output);
  Run run{hops,
          output,
          op,
          message,
          memory_of_sums(StaleMemory::Use::kReduceContributions, hops, input, message),
          one_hop_.memory(StaleMemory::Use::kAllReduceResult, message, output, begins_)};
  carry_out(run);
}

void HopPath::reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                             const Message& message) {
  check_reduction(context_.network.reduce.fill, op, input.type, message);
  const sim::HopSchedule& hops = schedule(sim::Collective::kReduceScatter);
  cut(hops, counts);
  const Tensor work = context_.scratch.take(Scratch::Slot::kPart, input, input.count_elems());
  copy(input, work);
  Run run{hops,
          work,
          op,
          message,
          memory_of_sums(StaleMemory::Use::kReduceScatterContributions, hops, input, message),
          one_hop_.memory(StaleMemory::Use::kReduceScatterResult, message, work, begins_)};
  carry_out(run);
  const auto mine = static_cast<std::size_t>(context_.inner.rank());
  copy(slice(work, {begins_[mine], begins_[mine + 1]}), output);
}

void HopPath::all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                         const Message& message) {
  const sim::HopSchedule& hops = schedule(sim::Collective::kAllGather);
  cut(hops, counts);
  const auto mine = static_cast<std::size_t>(context_.inner.rank());
  copy(input, slice(output, {begins_[mine], begins_[mine + 1]}));
  Run run{hops,
          output,
          ReduceOp::kSum,
          message,
          Tensor(output.type, {}),
          one_hop_.memory(StaleMemory::Use::kAllGather, message, output, begins_)};
  carry_out(run);
}

void HopPath::broadcast(Tensor data, int root, const Message& message) {
  const int ranks = context_.inner.world_size();
  if (root < 0 || root >= ranks) {
    throw ConfigError("broadcast: message \"" + std::string(message.name) + "\": got root " + std::to_string(root) +
                      ", want a rank from 0 to " + std::to_string(ranks - 1));
  }
  const sim::HopSchedule& hops = schedule(sim::Collective::kBroadcast, root);
  cut(hops, std::array<std::uint64_t, 1>{data.count_elems()});
  Run run{hops,
          data,
          ReduceOp::kSum,
          message,
          Tensor(data.type, {}),
          one_hop_.memory(StaleMemory::Use::kBroadcast, message, data, begins_, root)};
  carry_out(run);
}

void HopPath::all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                         std::span<const std::uint64_t> receive_counts, const Message& message) {
  one_hop_.all_to_all(input, send_counts, output, receive_counts, message);
}

std::vector<std::uint64_t> HopPath::all_reduce_parts(std::uint64_t count_elems) {
  return even_counts(count_elems, schedule(sim::Collective::kAllReduce).parts());
}

}  // namespace droptest::comm
