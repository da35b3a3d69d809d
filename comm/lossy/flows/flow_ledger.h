// SPDX-License-Identifier: Apache-2.0
// The packet indices, fates and counts of every link that one rank uses.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "comm/communicator.h"
#include "comm/lossy/flows/flow.h"
#include "comm/lossy/flows/send_times.h"
#include "comm/lossy/network.h"
#include "sim/loss/link.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"
#include "sim/state_visitor.h"

namespace droptest::comm {

/// Each link is counted on exactly one rank; the others keep only its index, and a digest of some messages.
enum class Tally : std::uint8_t { kCounted, kOtherEnd };

/// The delivery that the program asks for, or kCertain if the recovery `protect` covers the message in that step.
Delivery delivery_of(const Message& message, const ClassNetwork& network, std::uint64_t step);

/// One rank's verdict on a call or a step: whether any packet stayed missing.
enum class Verdict : std::uint8_t { kLossless, kLossy };

/// A message with its indices, but without its fates.
struct ReservedMessage {
  sim::Link link;
  LinkPosition position;  ///< the position of the link before this message
};

/// One call while its messages are drawn.
struct CallFates {
  GroupNumber group = 0;   ///< matters for links to every destination
  std::uint64_t step = 0;  ///< the loss of a link may change with it
  Delivery delivery = Delivery::kByNetwork;
  /// Whether both ends of a message reach the call together. Those of send, recv and exchange may not.
  enum class Ends : std::uint8_t { kTogether, kApart } ends = Ends::kTogether;
  std::optional<std::uint64_t> ordinal{};  ///< Message::ordinal
  /// The departures of the call's messages, for processes that depend on time, and their late packets. A packet that
  /// misses the deadline is lost, too, whatever its fate. Late packets are in the masks, but not in the counts and
  /// digests, which hold the losses of the process. Borrowed; null: no time is known.
  SendTimes* times = nullptr;
  /// A call reserves indices and draws fates at once, or in two phases: kReserve takes the indices of all messages;
  /// kDraw draws the fates of these messages when their times are known.
  enum class Phase : std::uint8_t { kAtOnce, kReserve, kDraw } phase = Phase::kAtOnce;
  std::deque<ReservedMessage>* reserved = nullptr;  ///< borrowed, for kReserve and kDraw

  Verdict verdict = Verdict::kLossless;  ///< verdict so far on the fates that this rank draws
};

/// Packets that a rank counts, over all links since its start; 0 with Counting::kOff.
struct PacketTotals {
  std::uint64_t packets = 0;  ///< packets of first transmissions
  std::uint64_t lost = 0;     ///< packets lost in first transmissions, before any recovery
};

/// Hands out packet indices and draws the fates of each message.
/// Thread safety: none; a rank has one. Ranks: the ends of a link use it in the same order, which is the program order
/// of the starts of calls.
class FlowLedger {
 public:
  /// The ledger shares the processes of `network`.
  explicit FlowLedger(const Network& network, Counting counting = Counting::kOn)
      : network_(network), counting_(counting) {}
  FlowLedger(const FlowLedger&) = delete;  // flows hold each other's addresses
  FlowLedger& operator=(const FlowLedger&) = delete;

  /// Uses up the packets of one message on a link. Returns whether any are missing after the half's recovery; then
  /// `missing` has a bit for each of packets.packets(), else it is unspecified.
  /// Determinism: the fates are LossProcess::draw(seed, link, first, ...) with `first` from docs/paths.md; those of
  /// packets that are sent again follow from docs/fates.md.
  /// Throws: ConfigError when a link runs out of packet indices, and for an ordinal that is wrong on its link.
  /// A call in the phase kReserve only takes indices: nothing is missing, and nothing is counted.
  bool draw_message(CallFates& call, const sim::Link& link, const sim::Packetizer& packets, Tally tally,
                    sim::PacketMask& missing);

  /// Uses up the packets of a message, on a rank that does not need their fates. Only every 16th message of the link is
  /// drawn, so that its two ends can be compared.
  void pass_message(CallFates& call, const sim::Link& link, const sim::Packetizer& packets);

  /// The index of the first of `count` draws for values that this rank sends on the link (stochastic rounding): each
  /// draw is used once in a run.
  std::uint64_t take_draws(const sim::Link& link, std::uint64_t count);

  /// Long-run fraction of a link's packets that stays missing, in messages of `packets` packets. Throws: CheckError if
  /// its recovery has no closed form; validate() refuses such a recovery with the fills that need the rate.
  double missing_rate(const sim::Link& link, std::uint64_t packets) const;

  void visit_state(sim::StateVisitor& visitor);

  /// The position of a link before its next message.
  LinkPosition position(const FlowKey& key) const;

  using Flows = std::map<FlowKey, Flow>;
  const Flows& flows() const { return flows_; }
  const Network& network() const { return network_; }
  /// The totals since the construction of this object; they are not part of the state.
  PacketTotals totals() const { return totals_; }

 private:
  static constexpr std::uint64_t kMessagesPerCheck = 16;

  const HalfNetwork& half_of(const sim::Link& link) const;
  const sim::LossProcess* process_of(const sim::Link& link) const;
  Flow& flow_of(const FlowKey& key);
  // A message with its flow, before its fates are drawn.
  struct Sent;
  Sent send(CallFates& call, const sim::Link& link, const sim::Packetizer& packets);
  static void take_times(const CallFates& call, Sent& sent);
  static void pass(const CallFates& call, const Sent& sent);
  bool draw(CallFates& call, const Sent& sent, const sim::Packetizer& packets, sim::PacketMask& missing);
  bool lose(const CallFates& call, const Sent& sent, const sim::LossProcess& process, const sim::Packetizer& packets,
            sim::PacketMask& missing);

  Network network_;
  Counting counting_;
  Flows flows_;
  std::pair<const FlowKey, Flow>* last_ = nullptr;  // the flow of the last message; null: none yet
  PacketTotals totals_;
  std::map<sim::Link, std::uint64_t> draws_;  // number of draws taken so far
  sim::PacketMask lost_;                      // losses of a message's first transmission
};

}  // namespace droptest::comm
