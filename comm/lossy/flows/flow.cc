// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/flows/flow.h"

#include <algorithm>
#include <string>

#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr double kMicrosecondsPerSecond = 1e6;

// The 64-bit packet index of docs/paths.md. An index that continues along the link has 48 bits for packets, and the
// bits above for the group's number. An index that restarts for each message has 32 bits for packets (the upper half of
// them for repetitions), and above them the message's number. On a link to every destination the message's number
// has 24 bits and the group's 8.
constexpr int kGroupShift = 48;
constexpr int kMessageShift = 32;
constexpr int kMessageGroupShift = 56;

// Payload of the `number` lost packets of `mask`: all are full except the message's last data packet, at `last`.
std::uint64_t lost_bytes(const sim::PacketMask& mask, std::uint64_t number, std::uint64_t last,
                         const sim::Packetizer& packets) {
  const std::uint64_t full = packets.payload_bytes(0);
  return number * full - (mask.lost(last) ? full - packets.payload_bytes(packets.packets() - 1) : 0);
}

// The packets that stay missing have a digest of their own, under this link.
sim::Link last_attempt(sim::Link link) {
  link.attempt = sim::Link::kMostAttempts;
  return link;
}

}  // namespace

std::string name_of(const sim::Link& link) {
  return "link " + std::to_string(link.source) + " -> " +
         (link.destination == sim::Link::kEveryDestination ? "all" : std::to_string(link.destination)) + " of class " +
         std::string(sim::traffic_class_name(link.traffic_class));
}

FlowKey key_of(const sim::Link& link, GroupNumber group) {
  return {link, link.destination == sim::Link::kEveryDestination ? group : GroupNumber{0}};
}

void LinkPosition::check_ordinal(const FlowKey& key, std::uint64_t packets_sent, std::optional<std::uint64_t> ordinal) {
  if (packets_sent == 0) return;
  const std::uint64_t most = (std::uint64_t{1} << kGroupShift) / packets_sent - 1;
  if (ordinal && *ordinal > most) {
    throw ConfigError(name_of(key.link) + ": got the ordinal " + std::to_string(*ordinal) + " of messages of " +
                      std::to_string(packets_sent) + " packets, want at most " + std::to_string(most));
  }
  const std::uint64_t of_each = ordinal ? packets_sent : 0;
  if (!ordinal_packets) ordinal_packets = of_each;
  if (*ordinal_packets == of_each || (of_each > 0 && of_each < *ordinal_packets)) return;
  const auto words = [](std::uint64_t size) {
    return size == 0 ? std::string("without an ordinal") : "of " + std::to_string(size) + " packets with an ordinal";
  };
  throw ConfigError(name_of(key.link) + ": got a message " + words(of_each) + ", want one " + words(*ordinal_packets) +
                    " like those before it");
}

sim::MessagePosition LinkPosition::place(const FlowKey& key, std::uint64_t packets_sent, BurstScope scope,
                                         std::optional<std::uint64_t> ordinal) const {
  const std::uint64_t group = key.group;
  const std::uint64_t number = ordinal.value_or(messages);
  if (scope == BurstScope::kLink) {
    const std::uint64_t before = ordinal ? *ordinal * ordinal_packets.value_or(packets_sent) : packets;
    if (number > kMostPackets || before + packets_sent > kMostPackets) {
      throw ConfigError(name_of(key.link) + ": got packets up to " + std::to_string(before + packets_sent) +
                        ", want at most " + std::to_string(kMostPackets) + " in a run: larger packets, or fewer");
    }
    const std::uint64_t origin = group << kGroupShift;
    return {origin + before, origin, number, std::nullopt};
  }
  const bool is_to_all = key.link.destination == sim::Link::kEveryDestination;
  const std::uint64_t most_messages = is_to_all ? kMostMessagesToAll : kMostMessages;
  const bool fits = packets_sent <= kMostPacketsOfMessage && number <= most_messages && group < kMostGroups;
  if (!fits) {
    throw ConfigError(
        name_of(key.link) + ": got message " + std::to_string(number) + " of " + std::to_string(packets_sent) +
        " packets in group " + std::to_string(group) + " with burst_scope \"message\", want at most " +
        std::to_string(kMostPacketsOfMessage) + " packets in each, and " + std::to_string(most_messages) + " messages" +
        (is_to_all ? " in " + std::to_string(kMostGroups) + " groups" : std::string()) + ", or burst_scope \"link\"");
  }
  const std::uint64_t origin = group << kMessageGroupShift | number << kMessageShift;
  return {origin, origin, 0, std::nullopt};
}

sim::PacketTimes LinkPosition::times(Carrier of, double departs_seconds, double packet_seconds, bool is_stopped) const {
  const double departs = departs_seconds * kMicrosecondsPerSecond;
  const LastLeft& left = last[static_cast<std::size_t>(of)];
  return {packet_seconds * kMicrosecondsPerSecond, std::max(departs, is_stopped ? left.stopped : left.running), 0,
          is_stopped, of == Carrier::kMessage};
}

void LinkPosition::leave(Carrier of, const sim::PacketTimes& times, std::uint64_t packets_sent) {
  if (packets_sent == 0) return;
  LastLeft& left = last[static_cast<std::size_t>(of)];
  (times.is_stopped ? left.stopped : left.running) =
      *times.departs_microseconds + static_cast<double>(packets_sent - 1) * times.packet_microseconds;
}

void MissingDigest::add(const sim::Link& link, std::uint64_t first_packet, const sim::PacketMask& missing,
                        sim::MessageOrder order) {
  if (digest_ == nullptr) digest_ = std::make_unique<sim::FateDigest>(last_attempt(link));
  if (order == sim::MessageOrder::kAny) {
    digest_->add_apart(first_packet, missing);
  } else {
    digest_->add(first_packet, missing);
  }
}

void MissingDigest::visit_state(sim::StateVisitor& visitor, const sim::Link& link) {
  const sim::StateVisitor::Part part(visitor, typeid(MissingDigest), sim::StateVisitor::Place::kMember);
  bool any = digest_ != nullptr;
  visit_value(visitor, any);
  if (!any) return digest_.reset();
  if (digest_ == nullptr) digest_ = std::make_unique<sim::FateDigest>(last_attempt(link));
  visit_value(visitor, *digest_);
}

void FlowTally::visit_state(sim::StateVisitor& visitor, const sim::Link& link, const sim::LossProcess* configured) {
  const sim::StateVisitor::Part part(visitor, typeid(FlowTally), sim::StateVisitor::Place::kMember);
  bool is_scattered = scattered != nullptr;
  visit_values(visitor, counts, fates, is_scattered);
  theory.visit_state(visitor, configured);
  missing.visit_state(visitor, link);
  if (!is_scattered) return scattered.reset();
  if (scattered == nullptr) scattered = std::make_unique<sim::ScatteredRuns>();
  visit_value(visitor, *scattered);
}

void Flow::visit_state(sim::StateVisitor& visitor, const sim::Link& link) {
  bool is_counted = tally != nullptr;
  visit_values(visitor, static_cast<LinkPosition&>(*this), peer_messages, is_counted, checked_fates);
  checked_missing.visit_state(visitor, link);
  if (!is_counted) return tally.reset();
  if (tally == nullptr) tally = std::make_unique<FlowTally>(link);
  tally->visit_state(visitor, link, process);
}

void FlowTally::count_scattered(std::uint64_t first_packet, std::uint64_t first_draw, const sim::PacketMask& lost) {
  if (scattered == nullptr) scattered = std::make_unique<sim::ScatteredRuns>();
  scattered->add(first_draw, lost);
  fates.digest_apart(first_packet, lost);
}

void FlowTally::count_bytes(std::uint64_t packets_sent, const sim::Packetizer& packets) {
  counts.bytes += (packets_sent - 1) * packets.payload_bytes(0) + packets.payload_bytes(packets.packets() - 1);
  counts.content_bytes += packets.content_bytes();
}

void FlowTally::count_lost(const sim::PacketMask& lost, std::uint64_t number, std::uint64_t last,
                           const sim::Packetizer& packets) {
  counts.lost_packets += number;
  counts.lost_bytes += lost_bytes(lost, number, last, packets);
}

// Go-back-N also drops packets that were not lost, so more packets can be missing than were lost.
void FlowTally::count_repair(const sim::Repair& repair, const sim::PacketMask& still_missing) {
  counts.repaired_packets += repair.lost_data_packets - std::min(repair.lost_data_packets, still_missing.lost_count());
  counts.resent_packets += repair.resent_packets;
  counts.resend_rounds += repair.rounds - 1;
}

void FlowTally::count_residual(const sim::PacketMask& still_missing, const sim::Packetizer& packets) {
  const std::uint64_t number = still_missing.lost_count();
  counts.residual_packets += number;
  counts.residual_bytes += lost_bytes(still_missing, number, packets.packets() - 1, packets);
}

LossCounts Flow::loss_counts() const {
  if (tally == nullptr) return {};
  LossCounts result;
  static_cast<PacketCounts&>(result) = tally->counts;
  result.messages = messages - undrawn_messages;
  result.packets = packets - undrawn_packets;
  const sim::LostCount expected = tally->theory.total();
  result.expected_lost = expected.mean;
  result.expected_lost_variance = expected.variance;
  const sim::BurstHistogram bursts = tally->fates.bursts();
  result.bursts = bursts.counts();
  result.gaps = bursts.gaps();
  result.stretches = bursts.stretches();
  if (tally->scattered != nullptr) {
    const sim::RunCounts runs = tally->scattered->counts();
    LossCounts with_ordinals;
    with_ordinals.bursts = runs.bursts();
    with_ordinals.gaps = runs.gaps();
    with_ordinals.stretches = runs.stretches();
    result.add(with_ordinals);
  }
  return result;
}

}  // namespace droptest::comm
