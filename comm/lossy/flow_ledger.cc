// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/flow_ledger.h"

#include <string>

#include "sim/error.h"

namespace droptest::comm {
namespace {

// The 64-bit packet index of docs/paths.md: an index that runs on leaves 48 bits for packets below the group's number;
// one that starts anew has 32 bits for packets, 24 for the message's number and 8 for the group's.
constexpr int kGroupShift = 48;
constexpr int kMessageShift = 32;
constexpr int kMessageGroupShift = 56;

std::string name_of(const sim::Link& link) {
  return "link " + std::to_string(link.source) + " -> " +
         (link.destination == sim::Link::kEveryDestination ? "all" : std::to_string(link.destination)) + " of class " +
         std::string(sim::traffic_class_name(link.traffic_class));
}

}  // namespace

const sim::LossProcess* FlowLedger::process_of(const sim::Link& link) const {
  const auto& network = network_.of(link.traffic_class);
  DROPTEST_CHECK(network.has_value(), name_of(link) + " has no network");
  const HalfNetwork& half = link.half == sim::Half::kReduce ? network->reduce : network->gather;
  return loss_of_link(half.links, link, half.loss.get());
}

double FlowLedger::loss_rate(const sim::Link& link) const {
  const sim::LossProcess* process = process_of(link);
  return process == nullptr ? 0 : process->loss_rate();
}

sim::MessagePlace FlowLedger::place_of(const Flow& flow, const FlowKey& key, std::uint64_t packets, BurstScope scope) {
  const std::uint64_t group = key.group;
  if (scope == BurstScope::kLink) {
    DROPTEST_CHECK((flow.packets + packets) >> kGroupShift == 0, name_of(key.link) + " ran out of packet indices");
    const std::uint64_t origin = group << kGroupShift;
    return {origin + flow.packets, origin, flow.messages, std::nullopt};
  }
  const bool fits = packets >> kMessageShift == 0 && flow.messages >> kMessageShift == 0 && group < 256 &&
                    (group == 0 || flow.messages >> (kMessageGroupShift - kMessageShift) == 0);
  DROPTEST_CHECK(fits, name_of(key.link) + " ran out of packet indices: message " + std::to_string(flow.messages) +
                           " of " + std::to_string(packets) + " packets in group " + std::to_string(group));
  const std::uint64_t origin = group << kMessageGroupShift | flow.messages << kMessageShift;
  return {origin, origin, 0, std::nullopt};
}

void FlowLedger::note_losses(FlowTally& tally, const sim::LossProcess& process, const sim::Link& link,
                             const sim::MessagePlace& place, const sim::Packetizer& packets, BurstScope scope,
                             std::uint64_t lost_packets) const {
  const std::uint64_t count = packets.packets();
  if (scope == BurstScope::kMessage) tally.bursts.interrupt();
  tally.bursts.add(mask_);
  tally.theory.add(process, network_.seed, link, place, count);
  if (lost_packets == 0) return;
  tally.lost_packets += lost_packets;
  // All packets are full but perhaps the last.
  tally.lost_bytes += lost_packets * packets.payload_bytes(0);
  if (mask_.lost(count - 1)) tally.lost_bytes -= packets.payload_bytes(0) - packets.payload_bytes(count - 1);
}

const sim::PacketMask* FlowLedger::next_message(const sim::Link& link, GroupNumber group,
                                                const sim::Packetizer& packets, Tally tally) {
  const FlowKey key{link, link.destination == sim::Link::kEveryDestination ? group : GroupNumber{0}};
  auto found = flows_.find(key);
  if (found == flows_.end()) found = flows_.try_emplace(key, link, process_of(link)).first;
  Flow& flow = found->second;
  if (tally == Tally::kCounted && flow.tally == nullptr) flow.tally = std::make_unique<FlowTally>();
  const std::uint64_t count = packets.packets();
  const sim::PacketMask* lost = nullptr;
  if (count > 0) {
    const sim::LossProcess* process = flow.process == nullptr ? nullptr : &flow.process->at_step(step_);
    if (process != nullptr && process->can_lose()) {
      const BurstScope scope = network_.of(link.traffic_class)->burst_scope;
      const sim::MessagePlace place = place_of(flow, key, count, scope);
      mask_.resize(count);
      process->draw_message(network_.seed, link, place, mask_);
      flow.digest.add(place.first_packet, mask_);
      const std::uint64_t lost_packets = mask_.lost_count();
      if (tally == Tally::kCounted) note_losses(*flow.tally, *process, link, place, packets, scope, lost_packets);
      if (lost_packets > 0) {
        lost = &mask_;
        touch_ = Touch::kTouched;
      }
    } else if (flow.tally != nullptr) {
      flow.tally->bursts.interrupt();
    }
    if (flow.tally != nullptr) {
      flow.tally->bytes += (count - 1) * packets.payload_bytes(0) + packets.payload_bytes(count - 1);
    }
  }
  flow.packets += count;
  ++flow.messages;
  return arrivals_ == nullptr ? lost : with_late(link, count, lost);
}

const sim::PacketMask* FlowLedger::with_late(const sim::Link& link, std::uint64_t packets,
                                             const sim::PacketMask* lost) {
  const std::uint64_t in_time = arrivals_->take(link, packets);
  if (in_time == packets) return lost;
  if (lost == nullptr) mask_.resize(packets);
  for (std::uint64_t packet = in_time; packet < packets; ++packet) mask_.set_lost(packet);
  touch_ = Touch::kTouched;
  return &mask_;
}

FlowLedger::Touch FlowLedger::take_touch() {
  const Touch touch = touch_;
  touch_ = Touch::kUntouched;
  return touch;
}

LossCounts FlowLedger::counts_of(const Flow& flow) {
  LossCounts counts;
  if (flow.tally == nullptr) return counts;
  const FlowTally& tally = *flow.tally;
  counts.messages = flow.messages;
  counts.packets = flow.packets;
  counts.bytes = tally.bytes;
  counts.lost_packets = tally.lost_packets;
  counts.lost_bytes = tally.lost_bytes;
  const sim::LostCount expected = tally.theory.total();
  counts.expected_lost = expected.mean;
  counts.expected_lost_variance = expected.variance;
  counts.bursts = tally.bursts.counts();
  return counts;
}

}  // namespace droptest::comm
