// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/clock/group_timeline.h"

#include <algorithm>
#include <bit>

namespace droptest::comm {
namespace {

const Message kClocks{sim::TrafficClass::kControl, "virtual clocks"};

std::uint64_t as_word(double seconds) { return std::bit_cast<std::uint64_t>(seconds); }
double as_seconds(std::uint64_t word) { return std::bit_cast<double>(word); }

std::vector<int> world_ranks(const Communicator& group) {
  std::vector<int> ranks;
  for (int r = 0; r < group.world_size(); ++r) ranks.push_back(group.world_rank(r));
  return ranks;
}

}  // namespace

bool time_feeds_fates(const Network& network, const TimeModel& model) {
  const bool waits_for_quorum =
      std::ranges::any_of(network.classes, [](const auto& of_class) { return of_class && of_class->quorum; });
  return model.deadline_seconds.has_value() || waits_for_quorum || keeps_time(network) || sends_again(network);
}

GroupTimeline::GroupTimeline(Communicator& group, GroupNumber number, VirtualClock& clock, const FlowLedger& ledger)
    : group_(group),
      number_(number),
      clock_(clock),
      ledger_(ledger),
      notes_times_(time_feeds_fates(clock.network(), clock.model())),
      timing_(clock.network(), clock.model(), number, world_ranks(group)) {}

const Message& GroupTimeline::message_of_departures() { return kClocks; }

CollectiveTiming::What GroupTimeline::what_of(const CallArguments& call, const CallStart& start) {
  const ElementType type = call.operation == Operation::kSend ? call.input.type : call.output.type;
  return {call.message.traffic_class, type, start.delivery, call.message.ordinal, start.is_stopped, start.step};
}

template <class Visit>
void GroupTimeline::visit_positions(const CollectiveTiming::What& what, const Visit& visit) const {
  std::size_t place = 0;
  for (const sim::Half half : {sim::Half::kReduce, sim::Half::kGather}) {
    if (!timing_.repeats(what, half)) continue;
    for (int peer = 0; peer < group_.world_size(); ++peer)
      visit(timing_.link(what, half, group_.rank(), peer), place++);
    for (int source = 0; source < group_.world_size(); ++source) {
      sim::Link to_all = timing_.link(what, half, source, source);
      to_all.destination = sim::Link::kEveryDestination;
      visit(to_all, place++);
    }
  }
}

CallStart GroupTimeline::start(const CallArguments& call, Delivery delivery, std::uint64_t step,
                               double ready_seconds) const {
  CallStart start{delivery, step, clock_.is_stopped(), ready_seconds, {}};
  const auto what = what_of(call, start);
  if (is_message(call.operation)) {
    if (!timing_.repeats(what, sim::Half::kGather)) return start;
    const bool sends = call.operation == Operation::kSend;
    const sim::Link link =
        timing_.link(what, sim::Half::kGather, sends ? group_.rank() : call.peer, sends ? call.peer : group_.rank());
    start.positions.push_back(ledger_.position(key_of(link, number_)));
    return start;
  }
  visit_positions(what, [&](const sim::Link& link, std::size_t /*place*/) {
    start.positions.push_back(ledger_.position(key_of(link, number_)));
  });
  return start;
}

// A rank knows only the positions of its own links. The whole group knows those of links to every destination. A
// position has the indices at the call's start, and the times after the calls that were played before it.
GroupTimeline::Clocks GroupTimeline::exchange_clocks(const CollectiveTiming::What& what, const CallStart& start,
                                                     double begin_seconds) {
  constexpr std::size_t kWordsOfLink = 4;
  const int ranks = group_.world_size();
  std::vector<std::uint64_t> mine = {as_word(start.ready_seconds), as_word(begin_seconds)};
  visit_positions(what, [&](const sim::Link& link, std::size_t place) {
    LinkPosition position = start.positions[place];
    position.last = ledger_.position(key_of(link, number_)).last;
    if (link.destination == sim::Link::kEveryDestination) return timing_.set_position(link, position);
    const LastLeft& left = position.last[static_cast<std::size_t>(Carrier::kCollective)];
    mine.insert(mine.end(), {position.messages, position.packets, as_word(left.running), as_word(left.stopped)});
  });
  std::vector<std::uint64_t> of_ranks(static_cast<std::size_t>(ranks) * mine.size());
  group_.all_gather(ConstTensor(std::span<const std::uint64_t>(mine)), Tensor(std::span(of_ranks)),
                    std::vector<std::uint64_t>(static_cast<std::size_t>(ranks), mine.size()), kClocks);
  Clocks clocks;
  auto next = of_ranks.begin();
  for (int source = 0; source < ranks; ++source) {
    clocks.ready_seconds = std::max(clocks.ready_seconds, as_seconds(*next++));
    clocks.begins.push_back(as_seconds(*next++));
    for (const sim::Half half : {sim::Half::kReduce, sim::Half::kGather}) {
      if (!timing_.repeats(what, half)) continue;
      for (int destination = 0; destination < ranks; ++destination, next += kWordsOfLink) {
        LinkPosition position;
        position.messages = next[0];
        position.packets = next[1];
        position.last[static_cast<std::size_t>(Carrier::kCollective)] = {as_seconds(next[2]), as_seconds(next[3])};
        timing_.set_position(timing_.link(what, half, source, destination), position);
      }
    }
  }
  return clocks;
}

CallTiming GroupTimeline::play_collective(const CallArguments& call, const CallStart& start) {
  clock_.send_times().clear();
  const CollectiveTiming::What what = what_of(call, start);
  std::vector<std::uint64_t> table;
  if (call.operation == Operation::kAllToAll) {
    const auto ranks = static_cast<std::size_t>(group_.world_size());
    table.resize(ranks * ranks);
    group_.all_gather(ConstTensor(call.counts), Tensor(std::span(table)), std::vector<std::uint64_t>(ranks, ranks),
                      kClocks);
  }
  VirtualClock::Ports& ports = clock_.ports();
  const double begin = std::max({start.ready_seconds, ports.sends_from, ports.receives_from});
  Clocks clocks = exchange_clocks(what, start, begin);
  const auto visit = [&](const Transmission& message) {
    if (message.counted_on == group_.rank()) count_message(message, clock_.time());
    if (notes_times_) note_time(message, clock_.send_times());
  };
  CallShape shape = shape_of(call);
  if (call.operation == Operation::kAllToAll) shape.counts = table;
  timing_.collective(shape, what, clocks.begins, visit);
  const double end = clocks.begins[static_cast<std::size_t>(group_.rank())];
  ports = {end, end};
  clock_.time().network_seconds += end - begin;
  return {clocks.ready_seconds, end};
}

// Messages from send to recv have no deadline. Both ends of a link know its position.
Transmission GroupTimeline::time_message(const CallArguments& call, const CallStart& start, int source, int destination,
                                         std::uint64_t elements, double departs) {
  clock_.send_times().clear();
  const CollectiveTiming::What what = what_of(call, start);
  if (timing_.repeats(what, sim::Half::kGather)) {
    const sim::Link link = timing_.link(what, sim::Half::kGather, source, destination);
    LinkPosition position = start.positions.at(0);
    position.last = ledger_.position(key_of(link, number_)).last;
    timing_.set_position(link, position);
  }
  const Transmission message = timing_.message(what, source, destination, elements, departs);
  if (!notes_times_) return message;
  clock_.send_times().add(message.link, {message.departs_seconds, message.packet_seconds, std::nullopt,
                                         message.repeated, message.is_stopped});
  return message;
}

std::pair<CallTiming, Departure> GroupTimeline::play_send(const CallArguments& call, const CallStart& start) {
  VirtualClock::Ports& ports = clock_.ports();
  const double departs = std::max(start.ready_seconds, ports.sends_from);
  const Transmission sent = time_message(call, start, group_.rank(), call.peer, call.input.count_elems(), departs);
  ports.sends_from = departs + sent.cost.transfer_seconds;
  clock_.time().network_seconds += sent.cost.transfer_seconds;
  return {{start.ready_seconds, ports.sends_from}, {start.ready_seconds, departs}};
}

// If the receiver's port is busy, the message waits in front of it. While its sender waits for feedback or a timer, the
// port takes other messages.
CallTiming GroupTimeline::play_recv(const CallArguments& call, const CallStart& start, const Departure& departure) {
  const auto [sender_ready, departs] = departure;
  const Transmission received = time_message(call, start, call.peer, group_.rank(), call.output.count_elems(), departs);
  VirtualClock::Ports& ports = clock_.ports();
  const double first_bit = std::max(departs + received.cost.latency_seconds, ports.receives_from);
  ports.receives_from = first_bit + received.cost.transfer_seconds;
  const double complete = ports.receives_from + received.cost.waiting_seconds;
  clock_.time().network_seconds += received.cost.transfer_seconds + received.cost.waiting_seconds;
  count_message(received, clock_.time());
  return {sender_ready, std::max(start.ready_seconds, complete)};
}

}  // namespace droptest::comm
