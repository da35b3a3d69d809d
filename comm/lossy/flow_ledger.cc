// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/flow_ledger.h"

#include <algorithm>
#include <string>

#include "sim/error.h"

namespace droptest::comm {
namespace {

// The 64-bit packet index of docs/paths.md: an index that runs on leaves 48 bits for packets below the group's number;
// one that starts anew has 32 bits for packets, 24 for the message's number and 8 for the group's.
constexpr int kGroupShift = 48;
constexpr int kMessageShift = 32;
constexpr int kMessageGroupShift = 56;

// Packets that are sent again look at other places of the link each time, so that a process that does not tell attempts
// apart (a trace, a pattern) does not lose the same packets for ever.
constexpr std::uint64_t kAttemptStride = 1000003;

sim::Link link_of_attempt(sim::Link link, std::uint64_t attempt) {
  link.attempt = static_cast<std::uint8_t>(1 + (attempt - 1) % sim::Link::kMostAttempts);
  return link;
}

// Payload of the lost packets of `mask`, of which there are `number`: all are full but the message's last data packet,
// which is at `last`.
std::uint64_t lost_bytes(const sim::PacketMask& mask, std::uint64_t number, std::uint64_t last,
                         const sim::Packetizer& packets) {
  const std::uint64_t full = packets.payload_bytes(0);
  return number * full - (mask.lost(last) ? full - packets.payload_bytes(packets.packets() - 1) : 0);
}

std::string name_of(const sim::Link& link) {
  return "link " + std::to_string(link.source) + " -> " +
         (link.destination == sim::Link::kEveryDestination ? "all" : std::to_string(link.destination)) + " of class " +
         std::string(sim::traffic_class_name(link.traffic_class));
}

}  // namespace

Flow::Flow(const sim::Link& link) : digest(link), missing_digest(link_of_attempt(link, sim::Link::kMostAttempts)) {}

const HalfNetwork& FlowLedger::half_of(const sim::Link& link) const {
  const auto& network = network_.of(link.traffic_class);
  DROPTEST_CHECK(network.has_value(), name_of(link) + " has no network");
  return link.half == sim::Half::kReduce ? network->reduce : network->gather;
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
  const HalfNetwork& half = half_of(link);
  const std::uint64_t data = packets.packets();
  const std::uint64_t count = half.recovery == nullptr ? data : half.recovery->first_packets(data);
  const sim::PacketMask* missing = nullptr;
  if (arrival_ == Arrival::kCertain) {
    if (flow.open_stretch > 0) ++flow.stretches[flow.open_stretch];
    flow.open_stretch = 0;
    flow.bursts.interrupt();
  } else if (half.loss != nullptr && half.loss->can_lose() && count > 0) {
    missing = lose(flow, key, half, packets, count);
  }
  flow.packets += count;
  ++flow.messages;
  if (count > 0) flow.counts.bytes += (count - 1) * packets.payload_bytes(0) + packets.payload_bytes(data - 1);
  return arrivals_ == nullptr ? missing : with_late(link, data, missing);
}

// Packets that come too late are missing whatever the recovery did, and what had to arrive is waited for.
const sim::PacketMask* FlowLedger::with_late(const sim::Link& link, std::uint64_t packets,
                                             const sim::PacketMask* missing) {
  const std::uint64_t in_time = arrivals_->take(link, packets);
  if (in_time == packets || arrival_ == Arrival::kCertain) return missing;
  if (missing == nullptr) {
    missing_.resize(packets);
  } else if (missing != &missing_) {
    missing_ = *missing;
  }
  for (std::uint64_t packet = in_time; packet < packets; ++packet) missing_.set_lost(packet);
  touch_ = Touch::kTouched;
  return &missing_;
}

// Draws the fates of a message that is sent as `count` packets.
const sim::PacketMask* FlowLedger::lose(Flow& flow, const FlowKey& key, const HalfNetwork& half,
                                        const sim::Packetizer& packets, std::uint64_t count) {
  const BurstScope scope = network_.of(key.link.traffic_class)->burst_scope;
  mask_.resize(count);
  const std::uint64_t first = first_packet(flow, key, count, scope);
  half.loss->draw(network_.seed, key.link, first, mask_);
  flow.digest.add(first, mask_);
  flow.exposed_packets += count;
  if (scope == BurstScope::kMessage) {
    flow.bursts.interrupt();
    ++flow.stretches[count];
  } else {
    flow.open_stretch += count;
  }
  if (flow.tally == Tally::kCounted) flow.bursts.add(mask_);
  const std::uint64_t lost = mask_.lost_count();
  if (lost == 0) return nullptr;
  const std::uint64_t data = packets.packets();
  const std::uint64_t last = half.recovery == nullptr ? data - 1 : half.recovery->position(data - 1, data);
  flow.counts.lost_packets += lost;
  flow.counts.lost_bytes += lost_bytes(mask_, lost, last, packets);
  const sim::PacketMask* missing = half.recovery == nullptr ? &mask_ : recover(flow, key, half, packets, first);
  if (missing == nullptr) return nullptr;
  touch_ = Touch::kTouched;
  const std::uint64_t residual = half.recovery == nullptr ? lost : missing->lost_count();
  flow.counts.residual_packets += residual;
  flow.counts.residual_bytes += lost_bytes(*missing, residual, data - 1, packets);
  return missing;
}

const sim::PacketMask* FlowLedger::recover(Flow& flow, const FlowKey& key, const HalfNetwork& half,
                                           const sim::Packetizer& packets, std::uint64_t first) {
  missing_.resize(packets.packets());
  const auto draw_again = [&](std::uint64_t attempt, std::uint64_t first_data, sim::PacketMask& lost) {
    half.loss->draw(network_.seed, link_of_attempt(key.link, attempt), first + first_data + attempt * kAttemptStride,
                    lost);
  };
  const sim::Repair repair = half.recovery->recover(mask_, draw_again, missing_);
  // Go-back-N drops packets that were not lost, so that more can be missing than were lost.
  flow.counts.repaired_packets += repair.lost_data_packets - std::min(repair.lost_data_packets, missing_.lost_count());
  flow.counts.resent_packets += repair.resent_packets;
  flow.counts.resend_rounds += repair.rounds - 1;
  if (!missing_.any_lost()) return nullptr;
  flow.missing_digest.add(first, missing_);
  return &missing_;
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
  const sim::LossProcess* process = half_of(key.link).loss.get();
  if (process == nullptr) return counts;
  counts.expected_lost = static_cast<double>(flow.exposed_packets) * process->loss_rate();
  // Stretches lie far apart in the index, so their losses are independent.
  counts.expected_lost_variance = process->lost_count_variance(flow.open_stretch);
  for (const auto& [length, number] : flow.stretches) {
    counts.expected_lost_variance += static_cast<double>(number) * process->lost_count_variance(length);
  }
  counts.bursts = flow.bursts.counts();
  return counts;
}

}  // namespace droptest::comm
