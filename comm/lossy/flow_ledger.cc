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
  return (link.half == sim::Half::kReduce ? network->reduce : network->gather).loss.get();
}

double FlowLedger::loss_rate(const sim::Link& link) const {
  const sim::LossProcess* process = process_of(link);
  return process == nullptr ? 0 : process->loss_rate();
}

std::uint64_t FlowLedger::first_packet(const Flow& flow, const FlowKey& key, std::uint64_t packets,
                                       BurstScope scope) const {
  const std::uint64_t group = key.group;
  if (scope == BurstScope::kLink) {
    DROPTEST_CHECK((flow.packets + packets) >> kGroupShift == 0, name_of(key.link) + " ran out of packet indices");
    return group << kGroupShift | flow.packets;
  }
  const bool fits = packets >> kMessageShift == 0 && flow.messages >> kMessageShift == 0 && group < 256 &&
                    (group == 0 || flow.messages >> (kMessageGroupShift - kMessageShift) == 0);
  DROPTEST_CHECK(fits, name_of(key.link) + " ran out of packet indices: message " + std::to_string(flow.messages) +
                           " of " + std::to_string(packets) + " packets in group " + std::to_string(group));
  return group << kMessageGroupShift | flow.messages << kMessageShift;
}

const sim::PacketMask* FlowLedger::next_message(const sim::Link& link, GroupNumber group,
                                                const sim::Packetizer& packets, Tally tally) {
  const FlowKey key{link, link.destination == sim::Link::kEveryDestination ? group : GroupNumber{0}};
  Flow& flow = flows_.try_emplace(key, link).first->second;
  flow.tally = tally;
  const sim::LossProcess* process = process_of(link);
  const std::uint64_t count = packets.packets();
  const BurstScope scope = network_.of(link.traffic_class)->burst_scope;
  const sim::PacketMask* lost = nullptr;
  if (process != nullptr && process->can_lose() && count > 0) {
    mask_.resize(count);
    const std::uint64_t first = first_packet(flow, key, count, scope);
    process->draw(network_.seed, link, first, mask_);
    flow.digest.add(first, mask_);
    if (tally == Tally::kCounted) {
      if (scope == BurstScope::kMessage) {
        flow.bursts.interrupt();
        ++flow.message_sizes[count];
      }
      flow.bursts.add(mask_);
    }
    const std::uint64_t lost_packets = mask_.lost_count();
    if (lost_packets > 0) {
      lost = &mask_;
      touch_ = Touch::kTouched;
      flow.counts.lost_packets += lost_packets;
      // All packets are full but perhaps the last.
      flow.counts.lost_bytes += lost_packets * packets.payload_bytes(0);
      if (mask_.lost(count - 1)) flow.counts.lost_bytes -= packets.payload_bytes(0) - packets.payload_bytes(count - 1);
    }
  }
  flow.packets += count;
  ++flow.messages;
  if (count > 0) flow.counts.bytes += (count - 1) * packets.payload_bytes(0) + packets.payload_bytes(count - 1);
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

LossCounts FlowLedger::counts_of(const FlowKey& key, const Flow& flow) const {
  LossCounts counts = flow.counts;
  counts.messages = flow.messages;
  counts.packets = flow.packets;
  const sim::LossProcess* process = process_of(key.link);
  if (process == nullptr) return counts;
  counts.expected_lost = static_cast<double>(flow.packets) * process->loss_rate();
  if (network_.of(key.link.traffic_class)->burst_scope == BurstScope::kLink) {
    counts.expected_lost_variance = process->lost_count_variance(flow.packets);
  } else {
    // Messages start far apart in the index, so their losses are independent.
    for (const auto& [size, number] : flow.message_sizes) {
      counts.expected_lost_variance += static_cast<double>(number) * process->lost_count_variance(size);
    }
  }
  counts.bursts = flow.bursts.counts();
  return counts;
}

}  // namespace droptest::comm
