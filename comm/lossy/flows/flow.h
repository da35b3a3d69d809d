// SPDX-License-Identifier: Apache-2.0
// A link at one rank: the index of its next packet, and the counts of its losses.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "comm/lossy/network.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "sim/loss/counted_fates.h"
#include "sim/loss/fate_digest.h"
#include "sim/loss/link.h"
#include "sim/loss/lost_count_theory.h"
#include "sim/loss/packet_mask.h"
#include "sim/loss/scattered_runs.h"
#include "sim/packets/packetizer.h"
#include "sim/recovery/link_recovery.h"
#include "sim/state_visitor.h"

namespace droptest::comm {

/// The number of a group among the groups that a rank is in: 0 for the communicator that was not split, larger for each
/// later split. All members of a group agree on it, and no rank is in two groups of the same number.
using GroupNumber = std::uint16_t;

/// A link as a sequence of packets. A link with one destination is one flow for all groups, because both its ends see
/// all of its messages. A link to every destination has one flow per group, because only the group sees the messages.
struct FlowKey {
  sim::Link link;
  GroupNumber group = 0;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, link, group); }
  friend auto operator<=>(const FlowKey&, const FlowKey&) = default;
};
FlowKey key_of(const sim::Link& link, GroupNumber group);

/// "link 0 -> 3 of class tp_forward"
std::string name_of(const sim::Link& link);

/// The kind of a message: of a collective, or from send to recv. Messages of one kind have one order of times at both
/// ends of a link; messages of different kinds do not.
enum class Carrier : std::uint8_t { kCollective, kMessage };

/// The time at which the last packet of a link left, in microseconds, while its clock ran, and while it stood still.
struct LastLeft {
  double running = 0;
  double stopped = 0;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, running, stopped); }
};

/// The position of a link: its packet indices and its times.
struct LinkPosition {
  /// Most packets of a link, or of a group's link to every destination, in one run of the program.
  static constexpr std::uint64_t kMostPackets = (std::uint64_t{1} << 48U) - 1;
  /// Most packets of a message, if indices restart for each message.
  static constexpr std::uint64_t kMostPacketsOfMessage = (std::uint64_t{1} << 31U) - 1;
  /// Most messages of a link, if indices restart for each message.
  static constexpr std::uint64_t kMostMessages = (std::uint64_t{1} << 32U) - 1;
  /// Most messages of a group's link to every destination, if indices restart for each message.
  static constexpr std::uint64_t kMostMessagesToAll = (std::uint64_t{1} << 24U) - 1;
  /// Most groups with links to every destination, if indices restart for each message.
  static constexpr std::uint64_t kMostGroups = 256;

  std::uint64_t messages = 0;
  std::uint64_t packets = 0;       ///< packets so far; the index of the next one, if indices continue along the link
  std::array<LastLeft, 2> last{};  ///< last packets of a link with a clock, by Carrier
  /// Packets of the first message, which no other message exceeds, if messages have ordinals (Message::ordinal); 0:
  /// they have none. Absent: no message with packets yet.
  std::optional<std::uint64_t> ordinal_packets;

  /// Throws: ConfigError for an ordinal that is too large, for a message with an ordinal that has more packets than the
  /// first one, or if only some of a link's messages have an ordinal.
  void check_ordinal(const FlowKey& key, std::uint64_t packets_sent, std::optional<std::uint64_t> ordinal);
  /// The position of the next message of `packets_sent` packets: after the messages before it, or at its ordinal.
  /// Throws: ConfigError when the indices run out.
  sim::MessagePosition place(const FlowKey& key, std::uint64_t packets_sent, BurstScope scope,
                             std::optional<std::uint64_t> ordinal) const;
  /// The times at which the packets of the next message leave: not before the last packet of the link's previous
  /// message of that kind.
  sim::PacketTimes times(Carrier of, double departs_seconds, double packet_seconds, bool is_stopped) const;
  /// Notes the times of packets that have left.
  void leave(Carrier of, const sim::PacketTimes& times, std::uint64_t packets_sent);
  /// Advances to the next message.
  void pass(std::uint64_t packets_sent) {
    packets += packets_sent;
    ++messages;
  }
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, messages, packets, last, ordinal_packets); }
};

/// The digest of the packets that a recovery left missing.
class MissingDigest {
 public:
  /// Adds a message's missing packets; for MessageOrder::kAny by FateDigest::add_apart().
  void add(const sim::Link& link, std::uint64_t first_packet, const sim::PacketMask& missing, sim::MessageOrder order);
  std::uint64_t value() const { return digest_ == nullptr ? 0 : digest_->value(); }
  void visit_state(sim::StateVisitor& visitor, const sim::Link& link);

 private:
  std::unique_ptr<sim::FateDigest> digest_;  // null until a packet stays missing
};

/// The counts of a link, on the rank that counts it. Members that every message changes come first.
struct alignas(64) FlowTally {
  explicit FlowTally(const sim::Link& link) : fates(link) {}
  /// The digest of all fates and of the packets that stayed missing.
  std::uint64_t digest() const { return fates.digest() + missing.value(); }
  /// Counts the fates of a message with an ordinal. `first_draw`: LossProcess::first_draw().
  void count_scattered(std::uint64_t first_packet, std::uint64_t first_draw, const sim::PacketMask& lost);

  /// Counts the bytes of a message of `packets_sent` packets; its last data packet may be short.
  void count_bytes(std::uint64_t packets_sent, const sim::Packetizer& packets);
  /// Counts the `number` lost packets of a message; `last` is the position of its last data packet.
  void count_lost(const sim::PacketMask& lost, std::uint64_t number, std::uint64_t last,
                  const sim::Packetizer& packets);
  void count_repair(const sim::Repair& repair, const sim::PacketMask& still_missing);
  /// Counts a message's data packets that stay missing.
  void count_residual(const sim::PacketMask& still_missing, const sim::Packetizer& packets);
  /// `configured` is the link's process for all steps.
  void visit_state(sim::StateVisitor& visitor, const sim::Link& link, const sim::LossProcess* configured);

  PacketCounts counts;
  sim::CountedFates fates;
  sim::LostCountTheory theory;
  MissingDigest missing;
  std::unique_ptr<sim::ScatteredRuns> scattered;  ///< runs of messages with ordinals; null: none yet
};

/// State of one flow. A rank has several for each of its peers, so it is small on all but the rank that counts it.
struct Flow : LinkPosition {
  Flow(const sim::Link& link, const sim::LossProcess* configured) : process(configured), checked_fates(link) {}
  /// The digest of the messages that both ends draw.
  std::uint64_t check() const { return checked_fates.value() + checked_missing.value(); }
  /// Its counts with expected losses, their variance and bursts; no counts if another rank counts it.
  LossCounts loss_counts() const;
  void visit_state(sim::StateVisitor& visitor, const sim::Link& link);

  const sim::LossProcess* process;     ///< process of the link for all steps; null: reliable
  std::uint64_t peer_messages = 0;     ///< messages of send and exchange, among `messages`
  std::uint64_t undrawn_messages = 0;  ///< messages that have indices, but no fates yet
  std::uint64_t undrawn_packets = 0;
  std::pair<const FlowKey, Flow>* next = nullptr;  ///< the flow that followed this one the last time; null: none yet
  std::unique_ptr<FlowTally> tally;                ///< null if another rank counts the link
  sim::FateDigest checked_fates;
  MissingDigest checked_missing;
};

}  // namespace droptest::comm
