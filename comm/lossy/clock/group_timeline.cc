// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/clock/group_timeline.h"

#include <algorithm>
#include <array>

namespace droptest::comm {
namespace {

const Message kClocks{sim::TrafficClass::kControl, "virtual clocks"};

std::vector<int> world_ranks(const Communicator& group) {
  std::vector<int> ranks;
  for (int r = 0; r < group.world_size(); ++r) ranks.push_back(group.world_rank(r));
  return ranks;
}

}  // namespace

bool time_feeds_fates(const Network& network, const TimeModel& model) {
  return model.deadline_seconds.has_value() || keeps_time(network) || sends_again(network);
}

GroupTimeline::GroupTimeline(Communicator& group, GroupNumber number, VirtualClock& clock)
    : group_(group),
      clock_(clock),
      notes_times_(time_feeds_fates(clock.network(), clock.model())),
      timing_(clock.network(), clock.model(), number, world_ranks(group)) {}

std::vector<double> GroupTimeline::exchange_clocks(double begin_seconds) {
  const auto ranks = static_cast<std::size_t>(group_.world_size());
  const std::array<double, 1> mine = {begin_seconds};
  std::vector<double> clocks(ranks);
  group_.all_gather(ConstTensor(std::span<const double>(mine)), Tensor(std::span(clocks)),
                    std::vector<std::uint64_t>(ranks, 1), kClocks);
  return clocks;
}

CallTimes GroupTimeline::play(const CallArguments& call, Arrival arrival, double ready_seconds) {
  clock_.message_times().clear();
  const ElementType type = call.operation == Operation::kSend ? call.input.type : call.output.type;
  const CollectiveTiming::What what{call.message.traffic_class, type, arrival, call.message.ordinal};
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
  std::vector<double> clocks = exchange_clocks(begin);
  const double all_ready = *std::max_element(clocks.begin(), clocks.end());
  const auto visit = [&](const TimedMessage& message) {
    if (message.counted_on == group_.rank()) count_message(message, clock_.time());
    if (notes_times_) note_time(message, clock_.message_times());
  };
  const auto play = [&](sim::Collective collective, std::span<const std::uint64_t> counts) {
    timing_.collective(collective, what, counts, std::max(call.peer, 0), clocks, visit);
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
      timing_.all_to_all(what, table, clocks, visit);
      break;
    default:
      play(sim::Collective::kBroadcast, std::array{call.output.count_elems()});
  }
  const double end = clocks[static_cast<std::size_t>(group_.rank())];
  ports = {end, end};
  clock_.time().network_seconds += end - begin;
  return {all_ready, end};
}

// Messages from send to recv have no deadline.
void GroupTimeline::note_message(const TimedMessage& message) {
  if (!notes_times_) return;
  clock_.message_times().add(message.link,
                             {message.departs_seconds, message.packet_seconds, std::nullopt, message.repeated});
}

// The time of departure travels before the message.
CallTimes GroupTimeline::play_send(const CallArguments& call, const CollectiveTiming::What& what,
                                   double ready_seconds) {
  VirtualClock::Ports& ports = clock_.ports();
  const std::array<double, 1> departure = {std::max(ready_seconds, ports.sends_from)};
  group_.send(ConstTensor(std::span<const double>(departure)), call.peer, kClocks);
  const TimedMessage sent = timing_.message(what, group_.rank(), call.peer, call.input.count_elems(), departure[0]);
  note_message(sent);
  ports.sends_from = departure[0] + sent.cost.transfer_seconds;
  clock_.time().network_seconds += sent.cost.transfer_seconds;
  return {ready_seconds, ports.sends_from};
}

// Where the receiver's port is busy, the message waits in front of it.
CallTimes GroupTimeline::play_recv(const CallArguments& call, const CollectiveTiming::What& what,
                                   double ready_seconds) {
  std::array<double, 1> departure = {0};
  group_.recv(Tensor(std::span<double>(departure)), call.peer, kClocks);
  const TimedMessage received =
      timing_.message(what, call.peer, group_.rank(), call.output.count_elems(), departure[0]);
  note_message(received);
  VirtualClock::Ports& ports = clock_.ports();
  const double first_bit = std::max(departure[0] + received.cost.latency_seconds, ports.receives_from);
  ports.receives_from = first_bit + received.cost.transfer_seconds;
  clock_.time().network_seconds += received.cost.transfer_seconds;
  count_message(received, clock_.time());
  return {departure[0], std::max(ready_seconds, ports.receives_from)};
}

}  // namespace droptest::comm
