// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/clock/group_timeline.h"

#include <algorithm>
#include <array>
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

// A rank knows the positions of its own links alone. Those of links to every destination are known to the whole group.
GroupTimeline::Clocks GroupTimeline::exchange_clocks(const CollectiveTiming::What& what, double ready_seconds,
                                                     double begin_seconds) {
  const int ranks = group_.world_size();
  std::vector<sim::Half> halves = {sim::Half::kReduce, sim::Half::kGather};
  std::erase_if(halves, [&](sim::Half half) { return !timing_.repeats(what, half); });
  std::vector<std::uint64_t> mine = {as_word(ready_seconds), as_word(begin_seconds)};
  for (const sim::Half half : halves) {
    for (int peer = 0; peer < ranks; ++peer) {
      const LinkCourse course = ledger_.course(key_of(timing_.link(what, half, group_.rank(), peer), number_));
      mine.insert(mine.end(), {course.messages, course.packets, as_word(course.last_microseconds),
                               as_word(course.last_stopped_microseconds)});
    }
  }
  std::vector<std::uint64_t> of_ranks(static_cast<std::size_t>(ranks) * mine.size());
  group_.all_gather(ConstTensor(std::span<const std::uint64_t>(mine)), Tensor(std::span(of_ranks)),
                    std::vector<std::uint64_t>(static_cast<std::size_t>(ranks), mine.size()), kClocks);
  Clocks clocks;
  auto next = of_ranks.begin();
  for (int source = 0; source < ranks; ++source) {
    clocks.ready_seconds = std::max(clocks.ready_seconds, as_seconds(*next++));
    clocks.begins.push_back(as_seconds(*next++));
    for (const sim::Half half : halves) {
      for (int destination = 0; destination < ranks; ++destination, next += 4) {
        timing_.set_course(timing_.link(what, half, source, destination),
                           {next[0], next[1], as_seconds(next[2]), as_seconds(next[3]), {}});
      }
      sim::Link to_all = timing_.link(what, half, source, source);
      to_all.destination = sim::Link::kEveryDestination;
      timing_.set_course(to_all, ledger_.course(key_of(to_all, number_)));
    }
  }
  return clocks;
}

CallTimes GroupTimeline::play(const CallArguments& call, Arrival arrival, double ready_seconds) {
  clock_.message_times().clear();
  const ElementType type = call.operation == Operation::kSend ? call.input.type : call.output.type;
  const CollectiveTiming::What what{call.message.traffic_class, type, arrival, call.message.ordinal,
                                    clock_.is_stopped()};
  if (call.operation == Operation::kSend) return play_send(call, what, ready_seconds);
  if (call.operation == Operation::kRecv) return play_recv(call, what, ready_seconds);
  return play_collective(call, what, ready_seconds);
}

CallTimes GroupTimeline::play_collective(const CallArguments& call, const CollectiveTiming::What& what,
                                         double ready_seconds) {
  std::vector<std::uint64_t> table;
  if (call.operation == Operation::kAllToAll) {
    const auto ranks = static_cast<std::size_t>(group_.world_size());
    table.resize(ranks * ranks);
    group_.all_gather(ConstTensor(call.counts), Tensor(std::span(table)), std::vector<std::uint64_t>(ranks, ranks),
                      kClocks);
  }
  VirtualClock::Ports& ports = clock_.ports();
  const double begin = std::max({ready_seconds, ports.sends_from, ports.receives_from});
  Clocks clocks = exchange_clocks(what, ready_seconds, begin);
  const auto visit = [&](const TimedMessage& message) {
    if (message.counted_on == group_.rank()) count_message(message, clock_.time());
    if (notes_times_) note_time(message, clock_.message_times());
  };
  const auto play = [&](sim::Collective collective, std::span<const std::uint64_t> counts) {
    timing_.collective(collective, what, counts, std::max(call.peer, 0), clocks.begins, visit);
  };
  switch (call.operation) {
    case Operation::kAllReduce:
      play(sim::Collective::kAllReduce, std::array{call.input.count_elems()});
      break;
    case Operation::kReduceScatter:
      play(sim::Collective::kReduceScatter, call.counts);
      break;
    case Operation::kAllGather:
      play(sim::Collective::kAllGather, call.counts);
      break;
    case Operation::kAllToAll:
      timing_.all_to_all(what, table, clocks.begins, visit);
      break;
    default:
      play(sim::Collective::kBroadcast, std::array{call.output.count_elems()});
  }
  const double end = clocks.begins[static_cast<std::size_t>(group_.rank())];
  ports = {end, end};
  clock_.time().network_seconds += end - begin;
  return {clocks.ready_seconds, end};
}

// Both ends of a link know its position.
void GroupTimeline::find_link(const CollectiveTiming::What& what, int source, int destination) {
  if (!timing_.repeats(what, sim::Half::kGather)) return;
  const sim::Link link = timing_.link(what, sim::Half::kGather, source, destination);
  timing_.set_course(link, ledger_.course(key_of(link, number_)));
}

// Messages from send to recv have no deadline.
void GroupTimeline::note_message(const TimedMessage& message) {
  if (!notes_times_) return;
  clock_.message_times().add(message.link, {message.departs_seconds, message.packet_seconds, std::nullopt,
                                            message.repeated, message.is_stopped});
}

// The time of departure travels before the message.
CallTimes GroupTimeline::play_send(const CallArguments& call, const CollectiveTiming::What& what,
                                   double ready_seconds) {
  VirtualClock::Ports& ports = clock_.ports();
  const double departs = std::max(ready_seconds, ports.sends_from);
  const std::array<double, 2> clocks = {ready_seconds, departs};
  group_.send(ConstTensor(std::span<const double>(clocks)), call.peer, kClocks);
  find_link(what, group_.rank(), call.peer);
  const TimedMessage sent = timing_.message(what, group_.rank(), call.peer, call.input.count_elems(), departs);
  note_message(sent);
  ports.sends_from = departs + sent.cost.transfer_seconds;
  clock_.time().network_seconds += sent.cost.transfer_seconds;
  return {ready_seconds, ports.sends_from};
}

// Where the receiver's port is busy, the message waits in front of it. While its sender waits for feedback or a timer,
// the port takes other messages.
CallTimes GroupTimeline::play_recv(const CallArguments& call, const CollectiveTiming::What& what,
                                   double ready_seconds) {
  std::array<double, 2> clocks{};
  group_.recv(Tensor(std::span<double>(clocks)), call.peer, kClocks);
  const auto [sender_ready, departs] = clocks;
  find_link(what, call.peer, group_.rank());
  const TimedMessage received = timing_.message(what, call.peer, group_.rank(), call.output.count_elems(), departs);
  note_message(received);
  VirtualClock::Ports& ports = clock_.ports();
  const double first_bit = std::max(departs + received.cost.latency_seconds, ports.receives_from);
  ports.receives_from = first_bit + received.cost.transfer_seconds;
  const double complete = ports.receives_from + received.cost.waiting_seconds;
  clock_.time().network_seconds += received.cost.transfer_seconds + received.cost.waiting_seconds;
  count_message(received, clock_.time());
  return {sender_ready, std::max(ready_seconds, complete)};
}

}  // namespace droptest::comm
