// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/group_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "comm/lossy/path_registry.h"
#include "sim/error.h"
#include "sim/packets/packetizer.h"
#include "sim/time/slot_fates.h"

namespace droptest::comm {
namespace {

const Message kClocks{sim::TrafficClass::kControl, "virtual clocks"};

// A group has 2^48 slots on each link, the upper half of them for what goes from send to recv.
constexpr int kGroupShift = 48;
constexpr std::uint64_t kMessageSlots = std::uint64_t{1} << 47U;
// A collective's rounds have stragglers of their own; the last number is that of what goes from send to recv.
constexpr std::size_t kMessageRound = 0xffff;

// Each rank to each other one, nearest first, so that no two hops meet at a port.
sim::TimedRound exchange_round(int ranks, sim::Half half, const auto& elements_of) {
  sim::TimedRound round;
  for (int distance = 1; distance < ranks; ++distance) {
    for (int source = 0; source < ranks; ++source) {
      const int destination = (source + distance) % ranks;
      round.push_back({source, destination, elements_of(source, destination), half});
    }
  }
  return round;
}

}  // namespace

GroupTimeline::GroupTimeline(Communicator& inner, GroupNumber group, const Network& network, const TimeModel& model,
                             VirtualTime& time, Arrivals& arrivals)
    : inner_(inner),
      group_(group),
      network_(network),
      model_(model),
      time_(time),
      arrivals_(arrivals),
      straggler_(model.transfer_p99_over_p50) {}

GroupTimeline::Wire GroupTimeline::wire_of(ElementType type, const Message& message) const {
  const auto& network = network_.of(message.traffic_class);
  DROPTEST_CHECK(network.has_value(), "a timed message of a class without a network");
  return {*network, message.traffic_class, element_bytes(type)};
}

std::vector<double> GroupTimeline::exchange_clocks() {
  const auto ranks = static_cast<std::size_t>(inner_.world_size());
  const std::array<double, 1> mine = {time_.seconds};
  std::vector<double> clocks(ranks);
  inner_.all_gather(ConstTensor(std::span<const double>(mine)), Tensor(std::span(clocks)),
                    std::vector<std::uint64_t>(ranks, 1), kClocks);
  return clocks;
}

sim::Link GroupTimeline::link(const Wire& wire, sim::Half half, int source, int destination) const {
  return {wire.traffic_class, half, static_cast<std::uint16_t>(inner_.world_rank(source)),
          static_cast<std::uint16_t>(inner_.world_rank(destination))};
}

GroupTimeline::Costed GroupTimeline::cost_of(const Wire& wire, const sim::TimedHop& hop, const Draws& draws) const {
  const sim::Packetizer cut(hop.elements, wire.element_bytes, wire.network.payload_bytes);
  const sim::Link on = link(wire, hop.half, hop.source, hop.destination);
  const sim::LinkCost& cost = model_.links.of(on.source, on.destination);
  const std::uint64_t stream = static_cast<std::uint64_t>(group_) << 48U |
                               static_cast<std::uint64_t>(draws.round) << 32U |
                               static_cast<std::uint64_t>(on.source) << 16U | on.destination;
  const double factor = straggler_.factor(network_.seed, sim::Purpose::kTransferStraggler, stream, draws.index);
  const auto headers = static_cast<double>(cut.packets() * model_.header_bytes);
  const double bytes = static_cast<double>(hop.elements * wire.element_bytes) + headers;
  Costed costed;
  costed.cost = {factor * cost.latency_seconds, factor * cost.transfer_seconds(bytes), cut.packets()};

  const HalfNetwork& half = hop.half == sim::Half::kReduce ? wire.network.reduce : wire.network.gather;
  const sim::LossProcess* loss = loss_of_link(half.links, on, half.loss.get());
  if (loss != nullptr) loss = &loss->at_step(step_);
  if (model_.reliable == nullptr || loss == nullptr || !loss->can_lose() || cut.packets() == 0) return costed;
  const auto packet_bytes = static_cast<double>(wire.network.payload_bytes + model_.header_bytes);
  const sim::LinkTiming timing{factor * cost.transfer_seconds(packet_bytes), factor * cost.round_trip_seconds()};
  std::uint64_t& slot = draws.next_slot[on];
  const std::uint64_t first = static_cast<std::uint64_t>(group_) << kGroupShift | (draws.first_slot + slot);
  sim::SlotFates fates(*loss, network_.seed, on, first);
  const sim::Delivery delivery = model_.reliable->deliver(fates, cut.packets(), timing);
  costed.cost.transfer_seconds += delivery.extra_seconds(cut.packets(), timing.slot_seconds);
  costed.repeated = delivery.packets_sent - cut.packets();
  costed.timeouts = delivery.timeouts;
  slot += delivery.slots + static_cast<std::uint64_t>(std::ceil(delivery.waiting_seconds / timing.slot_seconds));
  DROPTEST_CHECK(slot < kMessageSlots, "a link ran out of slots");
  return costed;
}

GroupTimeline::Costed GroupTimeline::cost_in_collective(const Wire& wire, const sim::TimedHop& hop, std::size_t round) {
  DROPTEST_CHECK(round < kMessageRound, "a collective of " + std::to_string(round) + " rounds");
  return cost_of(wire, hop, {next_slot_, 0, round, collectives_});
}

GroupTimeline::Costed GroupTimeline::cost_of_message(const Wire& wire, const sim::TimedHop& hop) {
  const std::uint64_t number = messages_[link(wire, hop.half, hop.source, hop.destination)]++;
  return cost_of(wire, hop, {next_message_slot_, kMessageSlots, kMessageRound, number});
}

void GroupTimeline::count(const Costed& costed, std::uint64_t in_time) {
  time_.packets += costed.cost.packets;
  time_.repeated += costed.repeated;
  time_.timeouts += costed.timeouts;
  time_.late += costed.cost.packets - in_time;
}

void GroupTimeline::note_arrivals(const Wire& wire, const sim::TimedRounds& schedule,
                                  std::span<const std::uint64_t> in_time) {
  const bool shared = wire.network.consistency == Consistency::kShared || wire.network.path == "contribution";
  std::map<sim::Link, std::uint64_t> of_all;
  std::size_t index = 0;
  for (const sim::TimedRound& round : schedule) {
    for (const sim::TimedHop& hop : round) {
      sim::Link on = link(wire, hop.half, hop.source, hop.destination);
      const std::uint64_t arrived = in_time[index++];
      if (!shared || hop.half == sim::Half::kReduce) {
        arrivals_.add(on, arrived);
        continue;
      }
      // Receivers that share fates share the shortest patience too.
      on.destination = sim::Link::kEveryDestination;
      const auto known = of_all.try_emplace(on, arrived).first;
      known->second = std::min(known->second, arrived);
    }
  }
  for (const auto& [on, arrived] : of_all) arrivals_.add(on, arrived);
}

void GroupTimeline::play(const Wire& wire, const sim::TimedRounds& schedule) {
  const std::vector<double> start = exchange_clocks();
  std::vector<Costed> mine;  // hops to this rank
  std::vector<std::size_t> mine_at;
  std::size_t index = 0;
  const sim::CostOfHop cost = [&](const sim::TimedHop& hop, std::size_t round) {
    const Costed costed = cost_in_collective(wire, hop, round);
    if (hop.destination == inner_.rank()) {
      mine.push_back(costed);
      mine_at.push_back(index);
    }
    ++index;
    return costed.cost;
  };
  const sim::RoundsOutcome outcome = sim::play_rounds(schedule, start, cost, model_.deadline_seconds);
  time_.seconds = outcome.finish_seconds[static_cast<std::size_t>(inner_.rank())];
  for (std::size_t i = 0; i < mine.size(); ++i) count(mine[i], outcome.in_time[mine_at[i]]);
  arrivals_.clear();
  if (model_.deadline_seconds) note_arrivals(wire, schedule, outcome.in_time);
  ++collectives_;
}

// On a path of hops: plays its schedule, with the elements cut by `counts`, evenly where there is one for all parts.
// False on other paths, whose rounds are made here, in an order in which no two hops meet at a port.
bool GroupTimeline::play_hops(const Wire& wire, sim::Collective collective, std::span<const std::uint64_t> counts,
                              int root) {
  const PathEntry& path = path_entry(wire.network.path);
  if (path.schedule == nullptr || path.name == "direct") return false;
  const int ranks = inner_.world_size();
  const auto schedule = path.schedule({collective, ranks, root, wire.network.group_ranks});
  const std::vector<std::uint64_t> cut = collective == sim::Collective::kAllReduce
                                             ? even_counts(counts[0], schedule->parts())
                                             : std::vector<std::uint64_t>(counts.begin(), counts.end());
  std::vector<std::uint64_t> begins = {0};
  for (const std::uint64_t count : cut) begins.push_back(begins.back() + count);
  sim::TimedRounds rounds(static_cast<std::size_t>(schedule->rounds()));
  std::vector<sim::Hop> hops;
  for (int round = 0; round < schedule->rounds(); ++round) {
    hops.clear();
    for (int rank = 0; rank < ranks; ++rank) schedule->sends(round, rank, hops);
    for (const sim::Hop& hop : hops) {
      const std::uint64_t elements =
          begins[static_cast<std::size_t>(hop.end_part)] - begins[static_cast<std::size_t>(hop.first_part)];
      if (elements == 0) continue;  // nothing is sent
      rounds[static_cast<std::size_t>(round)].push_back({hop.source, hop.destination, elements, hop.half});
    }
  }
  play(wire, rounds);
  return true;
}

// Packets are summed as they arrive and go on at once: latency + transfer up, latency down. The way down carries what
// the gather half repeats besides. The aggregation point waits one deadline from when the first rank begins.
void GroupTimeline::aggregate(const Wire& wire, std::uint64_t count_elems) {
  const std::vector<double> start = exchange_clocks();
  const double first = *std::min_element(start.begin(), start.end());
  const double limit = first + model_.deadline_seconds.value_or(std::numeric_limits<double>::infinity());
  arrivals_.clear();
  double complete = first;
  // Hops to the aggregation point are those of the group's first rank; its own takes as long as any.
  for (int source = 0; source < inner_.world_size(); ++source) {
    const sim::TimedHop hop{source, source == 0 ? inner_.world_size() - 1 : 0, count_elems, sim::Half::kReduce};
    const Costed up = cost_in_collective(wire, hop, 0);
    const double first_bit = start[static_cast<std::size_t>(source)] + up.cost.latency_seconds;
    const std::uint64_t in_time = sim::packets_in_time(up.cost, first_bit, limit);
    complete = std::max(complete, std::min(limit, first_bit + up.cost.transfer_seconds));
    if (model_.deadline_seconds) {
      sim::Link to_all = link(wire, sim::Half::kReduce, source, source);
      to_all.destination = sim::Link::kEveryDestination;
      arrivals_.add(to_all, in_time);
    }
    if (source == inner_.rank()) count(up, in_time);
  }
  const int me = inner_.rank();
  double finish = complete;
  for (int receiver = 0; receiver < inner_.world_size(); ++receiver) {
    const sim::TimedHop down{receiver == 0 ? inner_.world_size() - 1 : 0, receiver, count_elems, sim::Half::kGather};
    const Costed costed = cost_in_collective(wire, down, 1);
    if (receiver != me) continue;
    const sim::LinkCost& lossless = model_.links.of(inner_.world_rank(down.source), inner_.world_rank(receiver));
    const sim::Packetizer cut(count_elems, wire.element_bytes, wire.network.payload_bytes);
    const double bytes = static_cast<double>(count_elems * wire.element_bytes + cut.packets() * model_.header_bytes);
    finish = complete + costed.cost.latency_seconds +
             std::max(0.0, costed.cost.transfer_seconds - lossless.transfer_seconds(bytes));
    time_.repeated += costed.repeated;
    time_.timeouts += costed.timeouts;
  }
  time_.seconds = std::max(start[static_cast<std::size_t>(me)], finish);
  ++collectives_;
}

void GroupTimeline::all_reduce(std::uint64_t count_elems, ElementType type, const Message& message) {
  const Wire wire = wire_of(type, message);
  if (wire.network.path == "contribution") return aggregate(wire, count_elems);
  if (play_hops(wire, sim::Collective::kAllReduce, std::array{count_elems})) return;
  const std::vector<std::uint64_t> counts = even_counts(count_elems, inner_.world_size());
  play(wire, {exchange_round(inner_.world_size(), sim::Half::kReduce, [&](int, int owner) { return counts[owner]; }),
              exchange_round(inner_.world_size(), sim::Half::kGather, [&](int owner, int) { return counts[owner]; })});
}

void GroupTimeline::reduce_scatter(std::span<const std::uint64_t> counts, ElementType type, const Message& message) {
  const Wire wire = wire_of(type, message);
  if (wire.network.path == "contribution") {
    std::uint64_t count_elems = 0;
    for (const std::uint64_t c : counts) count_elems += c;
    return aggregate(wire, count_elems);
  }
  if (play_hops(wire, sim::Collective::kReduceScatter, counts)) return;
  play(wire, {exchange_round(inner_.world_size(), sim::Half::kReduce, [&](int, int owner) { return counts[owner]; })});
}

void GroupTimeline::all_gather(std::span<const std::uint64_t> counts, ElementType type, const Message& message) {
  const Wire wire = wire_of(type, message);
  if (play_hops(wire, sim::Collective::kAllGather, counts)) return;
  play(wire, {exchange_round(inner_.world_size(), sim::Half::kGather, [&](int owner, int) { return counts[owner]; })});
}

void GroupTimeline::all_to_all(std::span<const std::uint64_t> send_counts, ElementType type, const Message& message) {
  const Wire wire = wire_of(type, message);
  const auto ranks = static_cast<std::size_t>(inner_.world_size());
  std::vector<std::uint64_t> table(ranks * ranks);
  inner_.all_gather(ConstTensor(send_counts), Tensor(std::span(table)), std::vector<std::uint64_t>(ranks, ranks),
                    kClocks);
  play(wire, {exchange_round(inner_.world_size(), sim::Half::kGather, [&](int source, int destination) {
         return table[static_cast<std::size_t>(source) * ranks + static_cast<std::size_t>(destination)];
       })});
}

void GroupTimeline::broadcast(int root, std::uint64_t count_elems, ElementType type, const Message& message) {
  const Wire wire = wire_of(type, message);
  if (play_hops(wire, sim::Collective::kBroadcast, std::array{count_elems}, root)) return;
  sim::TimedRound round;
  for (int r = 0; r < inner_.world_size(); ++r) {
    if (r != root) round.push_back({root, r, count_elems, sim::Half::kGather});
  }
  play(wire, {round});
}

// The sender's clock travels ahead of the message.
void GroupTimeline::send(int destination, std::uint64_t count_elems, ElementType type, const Message& message) {
  const std::array<double, 1> clock = {time_.seconds};
  inner_.send(ConstTensor(std::span<const double>(clock)), destination, kClocks);
  const Wire wire = wire_of(type, message);
  const sim::TimedHop hop{inner_.rank(), destination, count_elems, sim::Half::kGather};
  const Costed costed = cost_of_message(wire, hop);
  time_.seconds += costed.cost.transfer_seconds;
}

void GroupTimeline::recv(int source, std::uint64_t count_elems, ElementType type, const Message& message) {
  std::array<double, 1> clock = {0};
  inner_.recv(Tensor(std::span<double>(clock)), source, kClocks);
  const Wire wire = wire_of(type, message);
  const sim::TimedHop hop{source, inner_.rank(), count_elems, sim::Half::kGather};
  const Costed costed = cost_of_message(wire, hop);
  const double arrival = clock[0] + costed.cost.latency_seconds + costed.cost.transfer_seconds;
  time_.seconds = std::max(time_.seconds, arrival);
  count(costed, costed.cost.packets);
}

}  // namespace droptest::comm
