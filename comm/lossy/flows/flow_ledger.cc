// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/flows/flow_ledger.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "sim/error.h"
#include "sim/time/link_cost.h"

namespace droptest::comm {
namespace {

constexpr double kMicrosecondsPerSecond = 1e6;

// The 64-bit packet index of docs/paths.md: an index that runs on leaves 48 bits for packets below the group's number;
// one that starts anew has 32 bits for packets, the upper half of which is for repetitions, 24 for the message's number
// and 8 for the group's.
constexpr int kGroupShift = 48;
constexpr int kMessageShift = 32;
constexpr int kMessageGroupShift = 56;

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

FlowKey key_of(const sim::Link& link, GroupNumber group) {
  return {link, link.destination == sim::Link::kEveryDestination ? group : GroupNumber{0}};
}

// Packets that a message of so many data packets goes out as.
std::uint64_t packets_sent(const HalfNetwork& half, std::uint64_t data_packets) {
  return half.recovery == nullptr ? data_packets : half.recovery->first_packets(data_packets);
}

}  // namespace

Arrival arrival_of(const Message& message, const ClassNetwork& network, std::uint64_t step) {
  return network.recovery.protect.covers(message, step) ? Arrival::kCertain : Arrival::kByFate;
}

const HalfNetwork& FlowLedger::half_of(const sim::Link& link) const {
  const auto& network = network_.of(link.traffic_class);
  DROPTEST_CHECK(network.has_value(), name_of(link) + " has no network");
  return link.half == sim::Half::kReduce ? network->reduce : network->gather;
}

const sim::LossProcess* FlowLedger::process_of(const sim::Link& link) const {
  const HalfNetwork& half = half_of(link);
  return loss_of_link(half.links, link, half.loss.get());
}

double FlowLedger::missing_rate(const sim::Link& link, std::uint64_t packets) const {
  const sim::LossProcess* process = process_of(link);
  if (process == nullptr) return 0;
  const HalfNetwork& half = half_of(link);
  if (half.recovery == nullptr) return process->loss_rate();
  const std::optional<double> rate = half.recovery->residual_rate(*process, packets);
  DROPTEST_CHECK(rate.has_value(), name_of(link) + ": no residual rate of " + half.recovery->describe());
  return *rate;
}

sim::MessagePlace LinkCourse::place(const FlowKey& key, std::uint64_t packets_sent, BurstScope scope) const {
  const std::uint64_t group = key.group;
  if (scope == BurstScope::kLink) {
    DROPTEST_CHECK((packets + packets_sent) >> kGroupShift == 0, name_of(key.link) + " ran out of packet indices");
    const std::uint64_t origin = group << kGroupShift;
    return {origin + packets, origin, messages, std::nullopt};
  }
  const bool fits = packets_sent >> (kMessageShift - 1) == 0 && messages >> kMessageShift == 0 && group < 256 &&
                    (group == 0 || messages >> (kMessageGroupShift - kMessageShift) == 0);
  DROPTEST_CHECK(fits, name_of(key.link) + " ran out of packet indices: message " + std::to_string(messages) + " of " +
                           std::to_string(packets_sent) + " packets in group " + std::to_string(group));
  const std::uint64_t origin = group << kMessageGroupShift | messages << kMessageShift;
  return {origin, origin, 0, std::nullopt};
}

// A message begins in the packet time in which it leaves, unless the message before it still has that one: its last
// packet may be short, and a packet that is not full takes a whole tick all the same.
sim::PacketTicks LinkCourse::take_ticks(std::uint64_t packets_sent, double departs_seconds, double packet_seconds) {
  const std::uint64_t first = std::max(sim::whole_slots(departs_seconds, packet_seconds), next_tick);
  next_tick = first + packets_sent;
  return {first, packet_seconds * kMicrosecondsPerSecond};
}

Flow& FlowLedger::flow_of(const FlowKey& key) {
  std::pair<const FlowKey, Flow>* entry = last_ == nullptr ? nullptr : last_->second.next;
  if (entry == nullptr || entry->first != key) {
    auto found = flows_.find(key);
    if (found == flows_.end()) found = flows_.try_emplace(key, key.link, process_of(key.link)).first;
    entry = &*found;
    if (last_ != nullptr) last_->second.next = entry;
  }
  last_ = entry;
  fetch_ahead(entry->second);
  return entry->second;
}

// Collectives come in rounds, in which the flow after this one will be the one of last time. Its state has long left
// the caches: it comes back while this flow's message is drawn.
void FlowLedger::fetch_ahead(const Flow& flow) {
  constexpr int kForWriting = 1;
  constexpr std::size_t kLineBytes = 64;
  constexpr std::size_t kHotTallyBytes = 4 * kLineBytes;
  if (flow.next == nullptr) return;
  const Flow& next = flow.next->second;
  if (next.next != nullptr) {
    __builtin_prefetch(&next.next->first, kForWriting);
    __builtin_prefetch(&next.next->second.tally, kForWriting);
  }
  if (next.tally == nullptr) return;
  const auto* tally = reinterpret_cast<const std::byte*>(next.tally.get());
  for (std::size_t line = 0; line < kHotTallyBytes; line += kLineBytes) {
    __builtin_prefetch(tally + line, kForWriting);
  }
  __builtin_prefetch(&next.tally->theory, kForWriting);
}

void FlowLedger::pass_message(const sim::Link& link, GroupNumber group, const sim::Packetizer& packets) {
  Flow& flow = flow_of(key_of(link, group));
  if (flow.messages % kMessagesPerCheck == 0) {
    next_message(link, group, packets, Tally::kOtherEnd);
    return;
  }
  const std::uint64_t count = packets_sent(half_of(link), packets.packets());
  if (times_ != nullptr) take_ticks(flow, count, times_->take(link));
  flow.packets += count;
  ++flow.messages;
}

const sim::PacketMask* FlowLedger::next_message(const sim::Link& link, GroupNumber group,
                                                const sim::Packetizer& packets, Tally tally) {
  const FlowKey key = key_of(link, group);
  Flow& flow = flow_of(key);
  if (tally == Tally::kCounted && counting_ == Counting::kOn && flow.tally == nullptr)
    flow.tally = std::make_unique<FlowTally>(link);
  const std::uint64_t data = packets.packets();
  const std::uint64_t count = packets_sent(half_of(link), data);
  const std::optional<MessageTime> time = times_ == nullptr ? std::nullopt : times_->take(link);
  const std::optional<sim::PacketTicks> ticks = take_ticks(flow, count, time);
  const sim::PacketMask* missing = nullptr;
  if (count > 0) {
    const sim::LossProcess* process = flow.process == nullptr ? nullptr : &flow.process->at_step(step_);
    if (process != nullptr && process->can_lose() && arrival_ == Arrival::kByFate) {
      missing = lose(flow, key, *process, packets, count, ticks, time && time->repeated ? &*time->repeated : nullptr);
    } else if (flow.tally != nullptr) {
      flow.tally->fates.interrupt();
    }
    if (flow.tally != nullptr) {
      flow.tally->counts.bytes += (count - 1) * packets.payload_bytes(0) + packets.payload_bytes(data - 1);
    }
  }
  flow.packets += count;
  ++flow.messages;
  return time && time->in_time ? with_late(std::min(*time->in_time, data), data, missing) : missing;
}

std::optional<sim::PacketTicks> FlowLedger::take_ticks(Flow& flow, std::uint64_t count,
                                                       const std::optional<MessageTime>& time) {
  if (!time || time->packet_seconds <= 0) return std::nullopt;
  return flow.take_ticks(count, time->departs_seconds, time->packet_seconds);
}

// Packets that come too late are missing whatever the recovery did, and what had to arrive is waited for.
const sim::PacketMask* FlowLedger::with_late(std::uint64_t in_time, std::uint64_t packets,
                                             const sim::PacketMask* missing) {
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
const sim::PacketMask* FlowLedger::lose(Flow& flow, const FlowKey& key, const sim::LossProcess& process,
                                        const sim::Packetizer& packets, std::uint64_t count,
                                        const std::optional<sim::PacketTicks>& ticks, const RepeatedMessage* repeated) {
  const BurstScope scope = network_.of(key.link.traffic_class)->burst_scope;
  sim::MessagePlace place = repeated == nullptr ? flow.place(key, count, scope) : repeated->place;
  if (repeated == nullptr) {
    place.ticks = ticks;
    // Where each message has fates of its own, no time passes between them.
    if (ticks && scope == BurstScope::kMessage) place.ticks->first = 0;
  }
  mask_.resize(count);
  FlowTally* tally = flow.tally.get();
  if (tally != nullptr && scope == BurstScope::kLink && !process.counts_by_message()) {
    tally->fates.draw(process, network_.seed, place.first_packet, mask_);
  } else {
    process.draw_message(network_.seed, key.link, place, mask_);
    if (tally != nullptr && scope == BurstScope::kMessage) tally->fates.interrupt();
    if (tally != nullptr) tally->fates.add(place.first_packet, mask_);
  }
  if (tally != nullptr) tally->theory.add(process, network_.seed, key.link, place, count);
  if (flow.messages % kMessagesPerCheck == 0) flow.checked_fates.add(place.first_packet, mask_);
  const std::uint64_t lost = mask_.lost_count();
  if (lost == 0) return nullptr;
  const sim::LinkRecovery* recovery = half_of(key.link).recovery.get();
  const std::uint64_t data = packets.packets();
  if (tally != nullptr) {
    const std::uint64_t last = recovery == nullptr ? data - 1 : recovery->position(data - 1, data);
    tally->counts.lost_packets += lost;
    tally->counts.lost_bytes += lost_bytes(mask_, lost, last, packets);
  }
  const sim::PacketMask* missing =
      recovery == nullptr ? &mask_ : recover(flow, key, process, *recovery, packets, place.first_packet, repeated);
  if (missing == nullptr) return nullptr;
  touch_ = Touch::kTouched;
  if (tally != nullptr) {
    const std::uint64_t residual = recovery == nullptr ? lost : missing->lost_count();
    tally->counts.residual_packets += residual;
    tally->counts.residual_bytes += lost_bytes(*missing, residual, data - 1, packets);
  }
  return missing;
}

const sim::PacketMask* FlowLedger::recover(Flow& flow, const FlowKey& key, const sim::LossProcess& process,
                                           const sim::LinkRecovery& recovery, const sim::Packetizer& packets,
                                           std::uint64_t first, const RepeatedMessage* repeated) {
  missing_.resize(packets.packets());
  const sim::LinkRecovery::DrawAgain draw_again =
      repeated == nullptr ? sim::draws_by_attempt(process, network_.seed, key.link, first)
                          : sim::draws_by_slot(process, network_.seed, key.link, repeated->place);
  const sim::LinkTiming timing = repeated == nullptr ? sim::LinkTiming{} : repeated->timing;
  const sim::Repair repair = recovery.recover(mask_, draw_again, timing, missing_);
  if (flow.tally != nullptr) {
    PacketCounts& counts = flow.tally->counts;
    // Go-back-N drops packets that were not lost, so that more can be missing than were lost.
    counts.repaired_packets += repair.lost_data_packets - std::min(repair.lost_data_packets, missing_.lost_count());
    counts.resent_packets += repair.resent_packets;
    counts.resend_rounds += repair.rounds - 1;
  }
  if (!missing_.any_lost()) return nullptr;
  sim::Link link = key.link;
  link.attempt = sim::Link::kMostAttempts;
  if (flow.messages % kMessagesPerCheck == 0) flow.checked_missing.add(link, first, missing_);
  if (flow.tally != nullptr) flow.tally->missing.add(link, first, missing_);
  return &missing_;
}

void MissingDigest::add(const sim::Link& link, std::uint64_t first_packet, const sim::PacketMask& missing) {
  if (digest_ == nullptr) digest_ = std::make_unique<sim::FateDigest>(link);
  digest_->add(first_packet, missing);
}

FlowLedger::Touch FlowLedger::take_touch() {
  const Touch touch = touch_;
  touch_ = Touch::kUntouched;
  return touch;
}

LossCounts FlowLedger::counts_of(const Flow& flow) {
  if (flow.tally == nullptr) return {};
  const FlowTally& tally = *flow.tally;
  LossCounts counts;
  static_cast<PacketCounts&>(counts) = tally.counts;
  counts.messages = flow.messages;
  counts.packets = flow.packets;
  const sim::LostCount expected = tally.theory.total();
  counts.expected_lost = expected.mean;
  counts.expected_lost_variance = expected.variance;
  const sim::BurstHistogram bursts = tally.fates.bursts();
  counts.bursts = bursts.counts();
  counts.gaps = bursts.gaps();
  counts.stretches = bursts.stretches();
  return counts;
}

}  // namespace droptest::comm
