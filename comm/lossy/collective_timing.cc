// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/collective_timing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "comm/lossy/path_registry.h"
#include "sim/error.h"
#include "sim/packets/packetizer.h"
#include "sim/time/slot_fates.h"

namespace droptest::comm {
namespace {

// A group has 2^48 slots on each link, the upper half of them for what goes from send to recv.
constexpr int kGroupShift = 48;
constexpr std::uint64_t kMessageSlots = std::uint64_t{1} << 47U;
// A collective's rounds have stragglers of their own; the last number is that of what goes from send to recv.
constexpr std::size_t kMessageRound = CollectiveTiming::kMostRounds;

}  // namespace

CollectiveTiming::CollectiveTiming(const Network& network, const TimeModel& model, GroupNumber group,
                                   std::vector<int> world_ranks)
    : network_(network),
      model_(model),
      group_(group),
      world_ranks_(std::move(world_ranks)),
      straggler_(model.transfer_p99_over_p50) {}

const ClassNetwork& CollectiveTiming::network_of(const What& what) const {
  const auto& network = network_.of(what.traffic_class);
  DROPTEST_CHECK(network.has_value(), "a timed message of a class without a network");
  return *network;
}

sim::Link CollectiveTiming::link(const What& what, sim::Half half, int source, int destination) const {
  return {what.traffic_class, half, static_cast<std::uint16_t>(world_ranks_[static_cast<std::size_t>(source)]),
          static_cast<std::uint16_t>(world_ranks_[static_cast<std::size_t>(destination)])};
}

TimedMessage CollectiveTiming::cost_of(const What& what, const sim::TimedHop& hop, const Draws& draws) const {
  const ClassNetwork& network = network_of(what);
  const HalfNetwork& half = hop.half == sim::Half::kReduce ? network.reduce : network.gather;
  const sim::Packetizer cut(hop.elements, element_bytes(what.type), network.payload_bytes);
  const std::uint64_t packets =
      half.recovery == nullptr || cut.packets() == 0 ? cut.packets() : half.recovery->first_packets(cut.packets());
  const sim::Link on = link(what, hop.half, hop.source, hop.destination);
  const sim::LinkCost& cost = model_.links.of(on.source, on.destination);
  const std::uint64_t stream = static_cast<std::uint64_t>(group_) << 48U |
                               static_cast<std::uint64_t>(draws.round) << 32U |
                               static_cast<std::uint64_t>(on.source) << 16U | on.destination;
  const double factor = straggler_.factor(network_.seed, sim::Purpose::kTransferStraggler, stream, draws.index);
  // A parity packet is as long as the longest of the message.
  const std::uint64_t redundant_bytes = packets > cut.packets() ? (packets - cut.packets()) * cut.payload_bytes(0) : 0;
  const auto bytes =
      static_cast<double>(hop.elements * element_bytes(what.type) + redundant_bytes + packets * model_.header_bytes);
  TimedMessage message;
  message.link = on;
  message.counted_on = hop.destination;
  const auto packet_bytes = static_cast<double>(network.payload_bytes + model_.header_bytes);
  message.packet_seconds = cost.transfer_seconds(packet_bytes);
  message.cost = {factor * cost.latency_seconds, factor * cost.transfer_seconds(bytes), packets};

  const sim::LossProcess* loss = loss_of_link(half.links, on, half.loss.get());
  if (loss != nullptr) loss = &loss->at_step(step_);
  if (model_.reliable == nullptr || loss == nullptr || !loss->can_lose() || packets == 0) return message;
  const sim::LinkTiming timing{factor * message.packet_seconds, factor * cost.round_trip_seconds()};
  std::uint64_t& slot = draws.next_slot[on];
  const std::uint64_t first = static_cast<std::uint64_t>(group_) << kGroupShift | (draws.first_slot + slot);
  sim::SlotFates fates(*loss, network_.seed, on, first);
  const sim::Delivery delivery = model_.reliable->deliver(fates, packets, timing);
  message.cost.transfer_seconds += delivery.extra_seconds(packets, timing.slot_seconds);
  message.repeated = delivery.packets_sent - packets;
  message.timeouts = delivery.timeouts;
  slot += delivery.slots_passed;
  DROPTEST_CHECK(slot < kMessageSlots, "a link ran out of slots");
  return message;
}

TimedMessage CollectiveTiming::cost_in_collective(const What& what, const sim::TimedHop& hop, std::size_t round) {
  DROPTEST_CHECK(round < kMessageRound, "a collective of " + std::to_string(round) + " rounds");
  return cost_of(what, hop, {next_slot_, 0, round, collectives_});
}

TimedMessage CollectiveTiming::message(const What& what, int source, int destination, std::uint64_t elements,
                                       double clock) {
  const sim::TimedHop hop{source, destination, elements, sim::Half::kGather};
  const std::uint64_t number = messages_[link(what, hop.half, source, destination)]++;
  TimedMessage message = cost_of(what, hop, {next_message_slot_, kMessageSlots, kMessageRound, number});
  message.in_time = message.cost.packets;
  message.departs_seconds = clock;
  return message;
}

void CollectiveTiming::play(const sim::HopSchedule& schedule, const What& what, const ElementsOf& elements_of,
                            std::span<double> clocks, const Visit& visit) {
  sim::RoundClock clock(clocks, model_.deadline_seconds);
  for (int round = 0; round < schedule.rounds(); ++round) {
    clock.begin_round();
    schedule.for_each_hop(round, [&](const sim::Hop& hop) {
      const std::uint64_t elements = elements_of(hop);
      if (elements == 0) return;  // nothing is sent
      const sim::TimedHop timed{hop.source, hop.destination, elements, hop.half};
      TimedMessage message = cost_in_collective(what, timed, static_cast<std::size_t>(round));
      const sim::HopOutcome outcome = clock.play(timed, message.cost);
      message.in_time = outcome.in_time;
      message.departs_seconds = outcome.start_seconds;
      visit(message);
    });
    clock.end_round();
  }
  clock.finish(clocks);
  ++collectives_;
}

void CollectiveTiming::collective(sim::Collective collective, const What& what, std::span<const std::uint64_t> counts,
                                  int root, std::span<double> clocks, const Visit& visit) {
  const ClassNetwork& network = network_of(what);
  const PathEntry& path = path_entry(network.path);
  const bool reduces = collective == sim::Collective::kAllReduce || collective == sim::Collective::kReduceScatter;
  if (path.schedule == nullptr && reduces) {
    std::uint64_t count_elems = 0;
    for (const std::uint64_t c : counts) count_elems += c;
    return aggregate(what, count_elems, clocks, visit);
  }
  // Values that no aggregation point adds up go from rank to rank.
  const auto make_schedule = path.schedule == nullptr ? &sim::make_direct_schedule : path.schedule;
  const auto schedule = make_schedule({collective, ranks(), root, network.group_ranks});
  const std::vector<std::uint64_t> cut = collective == sim::Collective::kAllReduce
                                             ? even_counts(counts[0], schedule->parts())
                                             : std::vector<std::uint64_t>(counts.begin(), counts.end());
  std::vector<std::uint64_t> begins = {0};
  for (const std::uint64_t count : cut) begins.push_back(begins.back() + count);
  const auto elements_of = [&](const sim::Hop& hop) {
    return begins[static_cast<std::size_t>(hop.end_part)] - begins[static_cast<std::size_t>(hop.first_part)];
  };
  play(*schedule, what, elements_of, clocks, visit);
}

void CollectiveTiming::all_to_all(const What& what, std::span<const std::uint64_t> table, std::span<double> clocks,
                                  const Visit& visit) {
  const auto schedule = sim::make_direct_schedule({sim::Collective::kAllGather, ranks()});
  const auto elements_of = [&](const sim::Hop& hop) {
    return table[static_cast<std::size_t>(hop.source) * world_ranks_.size() +
                 static_cast<std::size_t>(hop.destination)];
  };
  play(*schedule, what, elements_of, clocks, visit);
}

// Packets are summed as they arrive and go on at once: latency + transfer up, latency down. The way down carries what
// the gather half repeats besides. The aggregation point waits one deadline from when the first rank begins.
void CollectiveTiming::aggregate(const What& what, std::uint64_t count_elems, std::span<double> clocks,
                                 const Visit& visit) {
  const double first = *std::min_element(clocks.begin(), clocks.end());
  const double limit = first + model_.deadline_seconds.value_or(std::numeric_limits<double>::infinity());
  double complete = first;
  // Hops to the aggregation point are those of the group's first rank; its own takes as long as any.
  for (int source = 0; source < ranks(); ++source) {
    const sim::TimedHop hop{source, source == 0 ? ranks() - 1 : 0, count_elems, sim::Half::kReduce};
    TimedMessage up = cost_in_collective(what, hop, 0);
    const double first_bit = clocks[static_cast<std::size_t>(source)] + up.cost.latency_seconds;
    complete = std::max(complete, std::min(limit, first_bit + up.cost.transfer_seconds));
    up.in_time = sim::packets_in_time(up.cost, first_bit, limit);
    up.counted_on = source;
    up.departs_seconds = clocks[static_cast<std::size_t>(source)];
    up.link.destination = sim::Link::kEveryDestination;
    visit(up);
  }
  for (int receiver = 0; receiver < ranks(); ++receiver) {
    const sim::TimedHop hop{receiver == 0 ? ranks() - 1 : 0, receiver, count_elems, sim::Half::kGather};
    TimedMessage down = cost_in_collective(what, hop, 1);
    const sim::LinkCost& lossless = model_.links.of(down.link.source, down.link.destination);
    const sim::Packetizer cut(count_elems, element_bytes(what.type), network_of(what).payload_bytes);
    const double bytes =
        static_cast<double>(count_elems * element_bytes(what.type) + cut.packets() * model_.header_bytes);
    double& clock = clocks[static_cast<std::size_t>(receiver)];
    clock = std::max(clock, complete + down.cost.latency_seconds +
                                std::max(0.0, down.cost.transfer_seconds - lossless.transfer_seconds(bytes)));
    down.cost.packets = 0;  // the same ones that went up
    down.departs_seconds = complete;
    down.link.source = static_cast<std::uint16_t>(*std::ranges::min_element(world_ranks_));  // which names the point
    visit(down);
  }
  ++collectives_;
}

void note_time(const TimedMessage& message, const ClassNetwork& network, MessageTimes& times) {
  const MessageTime time{message.departs_seconds, message.packet_seconds, message.in_time};
  // Beside an aggregation point values go to all at once, and what comes from it has no deadline.
  const bool from_rank_to_all = network.path == "contribution" && message.in_time.has_value();
  const bool to_all =
      message.link.half == sim::Half::kGather && (network.consistency == Consistency::kShared || from_rank_to_all);
  to_all ? times.add_shared(message.link, time) : times.add(message.link, time);
}

void count_message(const TimedMessage& message, VirtualTime& time) {
  time.packets += message.cost.packets;
  time.repeated += message.repeated;
  time.timeouts += message.timeouts;
  if (message.in_time) time.late += message.cost.packets - *message.in_time;
}

}  // namespace droptest::comm
