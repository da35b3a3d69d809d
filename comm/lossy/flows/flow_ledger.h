// SPDX-License-Identifier: Apache-2.0
// The packet indices, fates and counts of every link that one rank has to do with.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <utility>

#include "comm/lossy/flows/message_times.h"
#include "comm/lossy/network.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "sim/loss/counted_fates.h"
#include "sim/loss/fate_digest.h"
#include "sim/loss/link.h"
#include "sim/loss/lost_count_theory.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Tells the groups of one rank apart: 0 for the communicator that was not split, larger for each later split. All
/// members of a group agree on it, and no rank is in two groups of one number.
using GroupNumber = std::uint16_t;

/// Each link is counted on exactly one rank; the others keep its index, and a digest of some messages, only.
enum class Tally : std::uint8_t { kCounted, kOtherEnd };

/// How a message fares. Certain: it arrives, and uses up its packets like others.
enum class Arrival : std::uint8_t { kByFate, kCertain };
Arrival arrival_of(const Message& message, const ClassNetwork& network, std::uint64_t step);

/// A link as a stream of packets. A link with one destination is one flow, whatever group it is used in, because both
/// its ends see all of its messages. A link to every destination has one flow per group, because only the group sees
/// the messages.
struct FlowKey {
  sim::Link link;
  GroupNumber group = 0;
  friend auto operator<=>(const FlowKey&, const FlowKey&) = default;
};

/// The digest of what stayed missing in spite of a recovery.
class MissingDigest {
 public:
  void add(const sim::Link& link, std::uint64_t first_packet, const sim::PacketMask& missing);
  std::uint64_t value() const { return digest_ == nullptr ? 0 : digest_->value(); }

 private:
  std::unique_ptr<sim::FateDigest> digest_;  // null while nothing did
};

/// What the rank that counts a link knows of it. What every message changes comes first.
struct alignas(64) FlowTally {
  explicit FlowTally(const sim::Link& link) : fates(link) {}
  /// Of all fates, and of what stayed missing.
  std::uint64_t digest() const { return fates.digest() + missing.value(); }

  PacketCounts counts;
  sim::CountedFates fates;
  sim::LostCountTheory theory;
  MissingDigest missing;
};

/// How far the packets of a link have come.
struct LinkCourse {
  std::uint64_t messages = 0;
  std::uint64_t packets = 0;    ///< so far; the index of the next one where indices run on along the link
  std::uint64_t next_tick = 0;  ///< of a link with a clock: the first one after its last packet

  /// Where a message of so many packets lies, which comes next. Throws: CheckError when the indices run out.
  sim::MessagePlace place(const FlowKey& key, std::uint64_t packets_sent, BurstScope scope) const;
  /// The ticks of such a message, which are then used up.
  sim::PacketTicks take_ticks(std::uint64_t packets_sent, double departs_seconds, double packet_seconds);
};

/// State of one flow. A rank has several for each of its peers, so it is small on all but the rank that counts it.
struct Flow : LinkCourse {
  Flow(const sim::Link& link, const sim::LossProcess* configured) : process(configured), checked_fates(link) {}
  /// The digest of the messages that both ends draw.
  std::uint64_t check() const { return checked_fates.value() + checked_missing.value(); }

  const sim::LossProcess* process;  ///< of the link, for all steps; null: reliable
  std::uint64_t peer_messages = 0;  ///< of the messages: those that may be under way when one end is asked
  std::pair<const FlowKey, Flow>* next = nullptr;  ///< that had the next message last time; null: none yet
  std::unique_ptr<FlowTally> tally;                ///< null where another rank counts the link
  sim::FateDigest checked_fates;
  MissingDigest checked_missing;
};

/// Hands out packet indices and draws the fates of each message.
/// Thread safety: none; a rank has one. Ranks: the ends of a link use it in the same order, which the program order of
/// the collectives gives.
class FlowLedger {
 public:
  /// The processes of `network` are shared with it.
  explicit FlowLedger(const Network& network, Counting counting = Counting::kOn)
      : network_(network), counting_(counting) {}
  FlowLedger(const FlowLedger&) = delete;  // flows know each other by address
  FlowLedger& operator=(const FlowLedger&) = delete;

  /// Uses up the packets of one message on a link, and returns those that are missing once the half's recovery has done
  /// what it can: null where all arrive, else a mask of packets.packets() bits that is valid until the next call.
  /// `group` matters for links to every destination.
  /// Determinism: the fates are LossProcess::draw(seed, link, first, ...) with `first` from docs/paths.md; those of
  /// packets that are sent again follow from docs/fates.md.
  /// Throws: CheckError when a link runs out of packet indices.
  const sim::PacketMask* next_message(const sim::Link& link, GroupNumber group, const sim::Packetizer& packets,
                                      Tally tally);

  /// Uses up the packets of a message whose fates are of no use to this rank. They are drawn for every 16th message of
  /// the link only, so that its two ends can be compared.
  void pass_message(const sim::Link& link, GroupNumber group, const sim::Packetizer& packets);

  /// The latest message was one of send, recv or exchange, whose two ends need not come to it together.
  void note_peer_message() { ++last_->second.peer_messages; }

  /// The training step that the next messages belong to; the loss of a link may change with it.
  void begin_step(std::uint64_t step) { step_ = step; }

  /// `times`, which is borrowed, says when messages leave, for processes that look at the time, and what misses a
  /// deadline: that is lost too, whatever its fate. Late packets
  /// are in the masks, but not in the counts and digests, which are the loss process's.
  void use_times(MessageTimes* times) { times_ = times; }

  /// How the next messages fare, until it is said otherwise.
  void set_arrival(Arrival arrival) { arrival_ = arrival; }

  /// Whether any packet stayed missing, as far as this rank draws fates, since the last call of this function.
  enum class Touch : std::uint8_t { kUntouched, kTouched };
  Touch take_touch();

  /// Long-run fraction of a link's packets that stays missing, in messages of so many packets.
  /// Throws: CheckError where its recovery knows no closed form, which validate() refuses with the fills that ask.
  double missing_rate(const sim::Link& link, std::uint64_t packets) const;

  using Flows = std::pmr::map<FlowKey, Flow>;
  const Flows& flows() const { return flows_; }
  const Network& network() const { return network_; }

  /// The counts of a flow with expected losses, their variance and bursts; none where another rank counts it.
  static LossCounts counts_of(const Flow& flow);

 private:
  static constexpr std::uint64_t kMessagesPerCheck = 16;

  const HalfNetwork& half_of(const sim::Link& link) const;
  Flow& flow_of(const FlowKey& key);
  static void fetch_ahead(const Flow& flow);
  const sim::LossProcess* process_of(const sim::Link& link) const;
  static std::optional<sim::PacketTicks> take_ticks(Flow& flow, std::uint64_t count,
                                                    const std::optional<MessageTime>& time);
  const sim::PacketMask* lose(Flow& flow, const FlowKey& key, const sim::LossProcess& process,
                              const sim::Packetizer& packets, std::uint64_t count,
                              const std::optional<sim::PacketTicks>& ticks, const RepeatedMessage* repeated);
  const sim::PacketMask* recover(Flow& flow, const FlowKey& key, const sim::LossProcess& process,
                                 const sim::LinkRecovery& recovery, const sim::Packetizer& packets, std::uint64_t first,
                                 const RepeatedMessage* repeated);
  const sim::PacketMask* with_late(std::uint64_t in_time, std::uint64_t packets, const sim::PacketMask* missing);

  Network network_;
  Counting counting_;
  std::uint64_t step_ = 0;
  std::pmr::monotonic_buffer_resource memory_;  // of flows_: one after the other in the order of their first messages
  Flows flows_{&memory_};
  std::pair<const FlowKey, Flow>* last_ = nullptr;  // that had a message; null: none yet
  sim::PacketMask mask_;
  MessageTimes* times_ = nullptr;
  sim::PacketMask missing_;
  Arrival arrival_ = Arrival::kByFate;
  Touch touch_ = Touch::kUntouched;
};

}  // namespace droptest::comm
