// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/clock/collective_timing.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {
namespace {

// Each round of a collective has its own stragglers; so have the messages from send to recv of each class.
std::size_t message_round(sim::TrafficClass of) {
  return static_cast<std::size_t>(CollectiveTiming::kMostRounds) + static_cast<std::size_t>(of);
}

sim::TimedHop hop_of(const PathMessage& message) {
  return {message.source, message.destination, message.elements.size(), message.half};
}

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

Transmission CollectiveTiming::cost_of(const What& what, const sim::TimedHop& hop, const Draws& draws) const {
  const ClassNetwork& network = network_of(what);
  const HalfNetwork& half = half_of(what, hop.half);
  const sim::Packetizer cut = network.packets(what.type, hop.elements);
  const std::uint64_t packets =
      half.recovery == nullptr || cut.packets() == 0 ? cut.packets() : half.recovery->first_packets(cut.packets());
  const sim::Link on = link(what, hop.half, hop.source, hop.destination);
  const sim::LinkCost& cost = model_.links.of(on.source, on.destination);
  const std::uint64_t stream = static_cast<std::uint64_t>(group_) << 48U |
                               static_cast<std::uint64_t>(draws.round) << 32U |
                               static_cast<std::uint64_t>(on.source) << 16U | on.destination;
  const double factor = straggler_.factor(network_.seed, sim::Purpose::kTransferStraggler, stream, draws.index);
  // A parity packet is as long as the longest data packet of the message.
  const std::uint64_t redundant_bytes = packets > cut.packets() ? (packets - cut.packets()) * cut.payload_bytes(0) : 0;
  const auto bytes = static_cast<double>(cut.bytes() + redundant_bytes + packets * model_.header_bytes);
  Transmission message;
  message.link = on;
  message.counted_on = hop.destination;
  message.is_stopped = what.is_stopped;
  const auto packet_bytes = static_cast<double>(network.payload_bytes + model_.header_bytes);
  message.packet_seconds = cost.transfer_seconds(packet_bytes);
  message.factor = factor;
  message.cost = {factor * cost.latency_seconds, factor * cost.transfer_seconds(bytes), 0, packets};
  message.data_packets = cut.packets();
  return message;
}

const sim::LinkCost& CollectiveTiming::slowest_link() const {
  const auto [first, last] = std::ranges::minmax(world_ranks_);
  return model_.links.of(first, last);
}

const HalfNetwork& CollectiveTiming::half_of(const What& what, sim::Half half) const {
  return network_of(what).of(half);
}

bool CollectiveTiming::repeats(const What& what, sim::Half half) const {
  const HalfNetwork& of = half_of(what, half);
  return of.recovery != nullptr && of.recovery->sends_again() && (of.loss != nullptr || !of.links.empty());
}

void CollectiveTiming::repeat(Carrier of, const What& what, Transmission& message) {
  const ClassNetwork& network = network_of(what);
  if (message.cost.packets == 0 || !repeats(what, message.link.half)) return;
  const HalfNetwork& half = half_of(what, message.link.half);
  const sim::LossProcess* loss = loss_of_link(half.links, message.link, half.loss.get());
  if (loss != nullptr) loss = &loss->at_step(what.step);
  const bool to_all = message.link.destination == sim::Link::kEveryDestination;
  ResendingLink& on_link = resending_links_[message.link];
  if (!to_all || on_link.collective != collectives_) {
    const FlowKey key = key_of(message.link, group_);
    on_link.check_ordinal(key, message.cost.packets, what.ordinal);
    sim::MessagePosition place = on_link.place(key, message.cost.packets, network.burst_scope, what.ordinal);
    place.times = on_link.times(of, message.departs_seconds, message.packet_seconds, what.is_stopped);
    on_link.leave(of, *place.times, message.cost.packets);
    on_link.pass(message.cost.packets);
    on_link.collective = collectives_;
    // Receivers of one packet share its fate, whatever their links: the slowest link sets the time of a repetition.
    const sim::LinkCost& cost =
        to_all ? slowest_link() : model_.links.of(message.link.source, message.link.destination);
    const auto bytes = static_cast<double>(network.payload_bytes + model_.header_bytes);
    on_link.last = {place, {cost.transfer_seconds(bytes), cost.round_trip_seconds()}};
    on_link.repair = {};
    if (loss != nullptr && loss->can_lose() && what.delivery == Delivery::kByNetwork) {
      sim::PacketMask lost(message.cost.packets);
      if (network.burst_scope == BurstScope::kMessage) place.times->departs_microseconds.reset();
      loss->draw_message(network_.seed, message.link, place, lost);
      sim::PacketMask missing(message.data_packets);
      on_link.repair = half.recovery->recover(lost, sim::draws_by_slot(*loss, network_.seed, message.link, place),
                                              on_link.last.timing, missing);
    }
  }
  message.repeated = on_link.last;
  message.resent = on_link.repair.resent_packets;
  message.timeouts = on_link.repair.rounds - 1;
  const double slot_seconds = on_link.last.timing.slot_seconds;
  message.cost.transfer_seconds += message.factor * on_link.repair.wire_seconds(slot_seconds);
  message.cost.waiting_seconds += message.factor * on_link.repair.idle_seconds(slot_seconds);
}

void CollectiveTiming::set_position(const sim::Link& link, const LinkPosition& position) {
  ResendingLink& of_link = resending_links_[link];
  static_cast<LinkPosition&>(of_link) = position;
  of_link.collective.reset();
}

Transmission CollectiveTiming::cost_in_collective(const What& what, const sim::TimedHop& hop, std::size_t round) const {
  DROPTEST_CHECK(round < static_cast<std::size_t>(kMostRounds), "a collective of " + std::to_string(round) + " rounds");
  return cost_of(what, hop, {round, collectives_});
}

Transmission CollectiveTiming::message(const What& what, int source, int destination, std::uint64_t elements,
                                       double clock) {
  const sim::TimedHop hop{source, destination, elements, sim::Half::kGather};
  const std::uint64_t so_far = messages_[link(what, hop.half, source, destination)]++;
  const std::uint64_t number = what.ordinal.value_or(so_far);
  Transmission message = cost_of(what, hop, {message_round(what.traffic_class), number});
  message.in_time = message.cost.packets;
  message.departs_seconds = clock;
  repeat(Carrier::kMessage, what, message);
  return message;
}

// A compression can turn one collective into several.
void CollectiveTiming::collective(const CallShape& call, const What& what, std::span<double> clocks,
                                  const Visit& visit) {
  const PathEntry& path = path_in(network_of(what), call.elements);
  const int point = rank_of_lowest(ranks(), [this](int rank) { return world_ranks_[static_cast<std::size_t>(rank)]; });
  PathMessages messages(network_of(what), path, ranks(), point);
  for (const SubCall& one : sub_calls_of(network_of(what), path, call, ranks())) {
    const auto visit_messages = [&](const PathMessages::Visit& each) { messages.visit(one, each); };
    const bool aggregates = path.route == Route::kAggregated && reduces(one.shape.operation);
    aggregates ? aggregate(visit_messages, what, clocks, visit) : play_rounds(visit_messages, what, clocks, visit);
    ++collectives_;
  }
}

void CollectiveTiming::play_rounds(const VisitMessages& visit_messages, const What& what, std::span<double> clocks,
                                   const Visit& visit) {
  sim::RoundClock clock(clocks, model_.deadline_seconds);
  int round = 0;
  clock.begin_round();
  visit_messages([&](const PathMessage& sent) {
    for (; round < sent.round; ++round) {
      clock.end_round();
      clock.begin_round();
    }
    if (sent.elements.size() == 0) return;  // nothing is sent
    const sim::TimedHop hop = hop_of(sent);
    Transmission message = cost_in_collective(what, hop, static_cast<std::size_t>(round));
    message.departs_seconds = clock.start_seconds(hop, message.cost);
    if (sent.to_all) message.link.destination = sim::Link::kEveryDestination;
    repeat(Carrier::kCollective, what, message);
    message.in_time = clock.play(hop, message.cost);
    visit(message);
  });
  clock.end_round();
  clock.finish(clocks);
}

// Packets are summed as they arrive and forwarded at once: latency + transfer up, latency down. The way down includes
// the repetitions of the gather half. The aggregation point waits one deadline from the start of the first rank, or for
// a quorum of complete messages and a grace; messages that are complete later are late as a whole. It waits for all
// messages that arrive for certain.
void CollectiveTiming::aggregate(const VisitMessages& visit_messages, const What& what, std::span<double> clocks,
                                 const Visit& visit) {
  // The hops between a rank and the aggregation point are timed as hops to the group's first rank. The own hop of that
  // rank takes as long as any other.
  const auto other_end = [this](int rank) { return rank == 0 ? ranks() - 1 : 0; };
  const double first = *std::min_element(clocks.begin(), clocks.end());
  std::vector<Transmission> contributions;
  std::optional<double> complete;
  visit_messages([&](const PathMessage& sent) {
    sim::TimedHop hop = hop_of(sent);
    if (sent.half == sim::Half::kReduce) {
      hop.destination = other_end(hop.source);
      Transmission up = cost_in_collective(what, hop, 0);
      up.departs_seconds = clocks[static_cast<std::size_t>(hop.source)];
      up.link.destination = sim::Link::kEveryDestination;
      repeat(Carrier::kCollective, what, up);
      up.counted_on = hop.source;
      contributions.push_back(up);
      return;
    }
    if (!complete) complete = aggregation_ends(contributions, first, what, visit);
    hop.source = other_end(hop.destination);
    Transmission down = cost_in_collective(what, hop, 1);
    const sim::LinkCost& lossless = model_.links.of(down.link.source, down.link.destination);
    down.departs_seconds = *complete;
    down.link.source = static_cast<std::uint16_t>(world_ranks_[static_cast<std::size_t>(sent.source)]);
    if (sent.to_all) down.link.destination = sim::Link::kEveryDestination;
    repeat(Carrier::kCollective, what, down);
    const auto bytes = static_cast<double>(sent.packets.bytes() + sent.packets.packets() * model_.header_bytes);
    double& clock = clocks[static_cast<std::size_t>(hop.destination)];
    clock = std::max(clock, *complete + down.cost.latency_seconds +
                                std::max(0.0, down.cost.transfer_seconds - lossless.transfer_seconds(bytes)) +
                                down.cost.waiting_seconds);
    down.cost.packets = 0;  // counted on the way up
    visit(down);
  });
}

double CollectiveTiming::aggregation_ends(std::span<Transmission> contributions, double first_seconds, const What& what,
                                          const Visit& visit) const {
  std::vector<double> ends;
  for (const Transmission& up : contributions) {
    ends.push_back(up.departs_seconds + up.cost.latency_seconds + up.cost.transfer_seconds + up.cost.waiting_seconds);
  }
  const ClassNetwork& network = network_of(what);
  double limit = first_seconds + model_.deadline_seconds.value_or(std::numeric_limits<double>::infinity());
  const bool has_quorum = network.quorum && what.delivery == Delivery::kByNetwork;
  if (has_quorum) {
    std::vector<double> in_order = ends;
    std::ranges::sort(in_order);
    const auto quorum = static_cast<std::size_t>(std::min(network.quorum->ranks, ranks()));
    limit = in_order[quorum - 1] + network.quorum->grace_seconds;
  }
  double complete = first_seconds;
  for (std::size_t source = 0; source < contributions.size(); ++source) {
    Transmission& up = contributions[source];
    complete = std::max(complete, std::min(limit, ends[source]));
    up.in_time = !has_quorum ? sim::packets_in_time(up.cost, up.departs_seconds + up.cost.latency_seconds, limit)
                 : ends[source] <= limit ? up.cost.packets
                                         : 0;
    visit(up);
  }
  return complete;
}

void note_time(const Transmission& message, SendTimes& times) {
  const SendTime time{message.departs_seconds, message.packet_seconds, message.in_time, message.repeated,
                      message.is_stopped};
  const bool shared =
      message.link.half == sim::Half::kGather && message.link.destination == sim::Link::kEveryDestination;
  shared ? times.add_shared(message.link, time) : times.add(message.link, time);
}

void count_message(const Transmission& message, VirtualTime& time) {
  time.packets += message.cost.packets;
  time.repeated += message.resent;
  time.timeouts += message.timeouts;
  if (message.in_time) time.late += message.cost.packets - *message.in_time;
}

}  // namespace droptest::comm
