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

GroupTimeline::GroupTimeline(Communicator& inner, GroupNumber group, const Network& network, const TimeModel& model,
                             VirtualTime& time, MessageTimes& times)
    : inner_(inner),
      network_(network),
      time_(time),
      times_(times),
      notes_times_(model.deadline_seconds.has_value() || keeps_time(network) || sends_again(network)),
      timing_(network, model, group, world_ranks(inner)) {}

void GroupTimeline::begin_step(std::uint64_t step) {
  step_ = step;
  timing_.begin_step(step);
}

CollectiveTiming::What GroupTimeline::what_of(const Message& message, ElementType type) const {
  return {message.traffic_class, type, arrival_of(message, *network_.of(message.traffic_class), step_)};
}

std::vector<double> GroupTimeline::exchange_clocks() {
  const auto ranks = static_cast<std::size_t>(inner_.world_size());
  const std::array<double, 1> mine = {time_.seconds};
  std::vector<double> clocks(ranks);
  inner_.all_gather(ConstTensor(std::span<const double>(mine)), Tensor(std::span(clocks)),
                    std::vector<std::uint64_t>(ranks, 1), kClocks);
  return clocks;
}

template <class Play>
void GroupTimeline::pass(const Play& play) {
  std::vector<double> clocks = exchange_clocks();
  times_.clear();
  play(std::span(clocks), [&](const TimedMessage& message) {
    if (message.counted_on == inner_.rank()) count_message(message, time_);
    if (notes_times_) note_time(message, times_);
  });
  time_.seconds = clocks[static_cast<std::size_t>(inner_.rank())];
}

// From send to recv there is no deadline.
void GroupTimeline::note_message(const TimedMessage& message) {
  times_.clear();
  if (notes_times_)
    times_.add(message.link, {message.departs_seconds, message.packet_seconds, std::nullopt, message.repeated});
}

void GroupTimeline::collective(sim::Collective collective, std::span<const std::uint64_t> counts, int root,
                               ElementType type, const Message& message) {
  const CollectiveTiming::What what = what_of(message, type);
  pass([&](std::span<double> clocks, const CollectiveTiming::Visit& visit) {
    timing_.collective(collective, what, counts, root, clocks, visit);
  });
}

void GroupTimeline::all_to_all(std::span<const std::uint64_t> send_counts, ElementType type, const Message& message) {
  const auto ranks = static_cast<std::size_t>(inner_.world_size());
  std::vector<std::uint64_t> table(ranks * ranks);
  inner_.all_gather(ConstTensor(send_counts), Tensor(std::span(table)), std::vector<std::uint64_t>(ranks, ranks),
                    kClocks);
  const CollectiveTiming::What what = what_of(message, type);
  pass([&](std::span<double> clocks, const CollectiveTiming::Visit& visit) {
    timing_.all_to_all(what, table, clocks, visit);
  });
}

// The sender's clock travels ahead of the message.
void GroupTimeline::send(int destination, std::uint64_t count_elems, ElementType type, const Message& message) {
  const std::array<double, 1> clock = {time_.seconds};
  inner_.send(ConstTensor(std::span<const double>(clock)), destination, kClocks);
  const TimedMessage sent =
      timing_.message(what_of(message, type), inner_.rank(), destination, count_elems, time_.seconds);
  note_message(sent);
  time_.seconds += sent.cost.transfer_seconds;
}

void GroupTimeline::recv(int source, std::uint64_t count_elems, ElementType type, const Message& message) {
  std::array<double, 1> clock = {0};
  inner_.recv(Tensor(std::span<double>(clock)), source, kClocks);
  const TimedMessage received = timing_.message(what_of(message, type), source, inner_.rank(), count_elems, clock[0]);
  note_message(received);
  const double arrival = clock[0] + received.cost.latency_seconds + received.cost.transfer_seconds;
  time_.seconds = std::max(time_.seconds, arrival);
  count_message(received, time_);
}

}  // namespace droptest::comm
