// SPDX-License-Identifier: Apache-2.0
#include "api/rank_network.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "api/argument_error.h"
#include "comm/communicator.h"
#include "comm/tensor_operations.h"

using droptest::api::ArgumentError;
using droptest::api::DrawnMessage;
using droptest::comm::ClassNetwork;
using droptest::comm::GroupNumber;
using droptest::comm::Tally;
using droptest::comm::Verdict;
using droptest::sim::Half;
using droptest::sim::Link;
using droptest::sim::Packetizer;
using droptest::sim::TrafficClass;

namespace {

constexpr int kNoLayer = -1;

Link to_everyone(TrafficClass traffic_class, Half half, std::uint16_t source) {
  return {traffic_class, half, source, Link::kEveryDestination};
}

Verdict verdict_of(const DrawnMessage& drawn) { return drawn.any_missing ? Verdict::kLossy : Verdict::kLossless; }

}  // namespace

droptest_network::droptest_network(droptest::comm::ProgramNetwork of_program, int of_rank, int ranks)
    : rank(of_rank),
      world_size(ranks),
      process(::getpid()),
      program(std::move(of_program)),
      rules(*program.rules),
      ledger(program.network) {}

droptest_flow& droptest_network::flow(const Link& link, GroupNumber number, Tally tally) {
  const auto key = droptest::comm::key_of(link, number);
  const auto [place, is_new] = flows.try_emplace(key, droptest_flow{this, link, number, tally});
  if (place->second.tally != tally) {
    throw ArgumentError(droptest::comm::name_of(link) + ": got a flow that is " +
                        (tally == Tally::kCounted ? "counted" : "not counted") + ", want one that is " +
                        (tally == Tally::kCounted ? "not counted" : "counted") + ", as it was opened first");
  }
  return place->second;
}

droptest_group& droptest_network::group(TrafficClass traffic_class, GroupNumber number,
                                        std::vector<std::uint16_t> members) {
  if (std::find(members.begin(), members.end(), rank) == members.end()) {
    throw ArgumentError("members: got a group without rank " + std::to_string(rank) + ", want this rank among them");
  }
  const std::uint16_t lowest = *std::min_element(members.begin(), members.end());
  const auto [place, is_new] = groups.try_emplace(
      {traffic_class, number}, droptest_group{this, traffic_class, {number, lowest}, members, 0, {}});
  if (place->second.members != members) {
    throw ArgumentError("group: got the number " + std::to_string(number) +
                        " for other members than before, want a number for each process group");
  }
  return place->second;
}

namespace {

DrawnMessage draw(droptest_network& network, const Link& link, GroupNumber group, Tally tally,
                  const Packetizer& packets) {
  DrawnMessage drawn;
  droptest::comm::Message message;
  message.traffic_class = link.traffic_class;
  const ClassNetwork& of_class = network.of(link.traffic_class);
  droptest::comm::CallFates call;
  call.group = group;
  call.step = network.step;
  call.delivery = droptest::comm::delivery_of(message, of_class, network.step);
  const auto key = droptest::comm::key_of(link, group);
  const auto known = network.ledger.flows().find(key);
  droptest::comm::LinkPosition position;
  if (known != network.ledger.flows().end()) position = known->second;
  const auto& recovery = (link.half == Half::kReduce ? of_class.reduce : of_class.gather).recovery;
  const std::uint64_t sent = recovery == nullptr ? packets.packets() : recovery->first_packets(packets.packets());
  drawn.summary.message = position.messages;
  drawn.summary.packets = packets.packets();
  if (sent > 0) drawn.summary.first_packet = position.place(key, sent, of_class.burst_scope, {}).first_packet;
  drawn.any_missing = network.ledger.draw_message(call, link, packets, tally, drawn.missing);
  if (drawn.any_missing) drawn.summary.lost = drawn.missing.lost_count();
  return drawn;
}

}  // namespace

DrawnMessage droptest_network::next(const droptest_flow& flow, const Packetizer& packets) {
  DrawnMessage drawn = draw(*this, flow.link, flow.group, flow.tally, packets);
  if (flow.tally == Tally::kCounted)
    verdicts.note_message({flow.link.traffic_class, kNoLayer}, step, verdict_of(drawn));
  return drawn;
}

DrawnMessage droptest_network::next_of(droptest_group& group, Half half, const Packetizer& packets) {
  const Link link = to_everyone(group.traffic_class, half, static_cast<std::uint16_t>(rank));
  DrawnMessage drawn = draw(*this, link, group.identity.number, Tally::kCounted, packets);
  verdicts.note_collective({group.traffic_class, kNoLayer}, group.identity, step, verdict_of(drawn));
  return drawn;
}

std::uint64_t droptest_network::count_messages(const droptest_flow& flow, std::uint64_t messages, std::uint64_t packets,
                                               std::uint64_t bytes) {
  const std::uint64_t payload = of(flow.link.traffic_class).payload_bytes;
  const std::uint64_t missing = packets * payload - bytes;  // bytes that the short packets lack
  if (packets > ~std::uint64_t{0} / payload || packets < messages || (messages == 0) != (packets == 0) ||
      bytes > packets * payload || missing > messages * (payload - 1)) {
    throw ArgumentError("messages, packets, bytes: got " + std::to_string(messages) + ", " + std::to_string(packets) +
                        " and " + std::to_string(bytes) + ", want sizes of messages that end with at most one short " +
                        "packet of " + std::to_string(payload) + " bytes");
  }
  // Fates and their counts do not depend on how the packets are cut into messages.
  std::uint64_t lost = 0;
  const auto share = [messages](std::uint64_t total, std::uint64_t i) {
    return total / messages + (i < total % messages ? 1 : 0);
  };
  for (std::uint64_t i = 0; i < messages; ++i) {
    const Packetizer message(share(packets, i) * payload - share(missing, i), 1, payload);
    lost += next(flow, message).summary.lost;
  }
  return lost;
}

std::uint64_t droptest_network::keep_unfinished(droptest_group& group, droptest::comm::ElementType type,
                                                const Packetizer& packets, const droptest::sim::PacketMask* own) {
  const droptest::comm::HalfNetwork& half = of(group.traffic_class).reduce;
  if (!half.rule().rescales() || !droptest::comm::can_lose(half)) return 0;
  droptest_group::Unfinished unfinished{{}, packets, type};
  unfinished.lost.start(packets.packets());
  if (half.rule().scale == droptest::comm::FillRule::Scale::kByCount) {
    for (const std::uint16_t member : group.members) {
      if (member == rank) {
        unfinished.lost.add(own);
        continue;
      }
      const Link link = to_everyone(group.traffic_class, Half::kReduce, member);
      const DrawnMessage theirs = draw(*this, link, group.identity.number, Tally::kOtherEnd, packets);
      unfinished.lost.add(theirs.lost());
    }
  }
  group.unfinished.emplace(++group.sums, std::move(unfinished));
  return group.sums;
}

void droptest_network::finish(droptest_group& group, std::uint64_t number, const droptest_memory* where, void* data,
                              std::uint64_t first_element, std::uint64_t elements) {
  const auto found = group.unfinished.find(number);
  if (found == group.unfinished.end()) {
    throw ArgumentError("sum: got " + std::to_string(number) +
                        ", want the number of a sum whose results are not scaled yet");
  }
  const droptest_group::Unfinished& sum = found->second;
  if (first_element > sum.packets.count_elems() || elements > sum.packets.count_elems() - first_element) {
    throw ArgumentError("elements: got " + std::to_string(first_element) + " to " +
                        std::to_string(first_element + elements) + ", want a part of the message's " +
                        std::to_string(sum.packets.count_elems()));
  }
  const droptest::comm::HalfNetwork& half = of(group.traffic_class).reduce;
  const droptest::comm::Tensor results{
      sum.type, {static_cast<std::byte*>(data), elements * droptest::comm::element_bytes(sum.type)}};
  memory.change(where, results, [&](droptest::comm::Tensor tensor) {
    if (half.rule().scale == droptest::comm::FillRule::Scale::kByCount) {
      sum.lost.rescale(tensor, first_element, sum.packets, static_cast<int>(group.members.size()));
    } else {
      droptest::comm::scale(tensor, droptest::comm::inverse_probability_factor(half, sum.packets.packets()));
    }
  });
  group.unfinished.erase(found);
}

// The record here has no verdicts on steps.
void droptest_network::set_step(std::uint64_t next_step) {
  step = next_step;
  std::vector<droptest::comm::LayerKey> keys;
  for (const auto& [key, steps] : verdicts.steps()) keys.push_back(key);
  for (const auto& key : keys) verdicts.settle_steps(key, next_step, {});
}

void droptest_network::count_exempt(droptest::api::Exemption reason, const droptest::api::ProgramCall& call) {
  droptest::api::ExemptCounts& counts = exempt[static_cast<std::size_t>(reason)];
  ++counts.calls;
  counts.bytes += call.bytes();
}
