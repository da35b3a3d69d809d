// SPDX-License-Identifier: Apache-2.0
// Which packets of a link are lost. Smallest example: bernoulli.h.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "sim/loss/chain_states.h"
#include "sim/loss/fate_chain.h"
#include "sim/loss/link.h"
#include "sim/loss/packet_mask.h"
#include "sim/state_visitor.h"

namespace droptest::sim {

/// The times at which the packets of a message leave, by a clock.
struct PacketTimes {
  double packet_microseconds = 0;  ///< time from one packet to the next
  /// Departure of the first packet; absent: time begins with the message.
  std::optional<double> departs_microseconds{};
  std::uint64_t slot = 0;     ///< packet times after the departure, for a repetition
  bool is_stopped = false;    ///< whether the clock stands still: departures are then on a time line of their own
  bool is_from_send = false;  ///< whether send to recv carries it: it and collectives come in no common order
  void visit_state(StateVisitor& visitor) {
    visit_values(visitor, packet_microseconds, departs_microseconds, slot, is_stopped, is_from_send);
  }
};

/// The place of a message on its link.
struct MessagePosition {
  std::uint64_t first_packet = 0;  ///< index of the message's first packet
  std::uint64_t origin = 0;        ///< index of the first packet that this link counts
  std::uint64_t message = 0;       ///< messages of the link since the origin
  /// Absent: a process that counts time derives the times from the packets and messages before.
  std::optional<PacketTimes> times{};
  void visit_state(StateVisitor& visitor) { visit_values(visitor, first_packet, origin, message, times); }
};

/// Mean and variance of a number of lost packets.
struct LostCount {
  double mean = 0;
  double variance = 0;
  void visit_state(StateVisitor& visitor) { visit_values(visitor, mean, variance); }
};

/// The state of LossProcess::count_by_clock() over the earlier messages.
struct ClockMemory {
  double tick_microseconds = 0;
  std::uint64_t tick = 0;  ///< tick of the last packet
  double weight = 0;       ///< weight of all packets so far
  void visit_state(StateVisitor& visitor) { visit_values(visitor, tick_microseconds, tick, weight); }
};

/// A loss process as a chain of two states, good and bad, with a loss rate each.
struct LossChain {
  double bad_share = 0;  ///< stationary share of the bad state
  double memory = 0;     ///< lambda = 1 - p - r: correlation of the states of neighbouring packets
  double loss_good = 0;
  double loss_bad = 0;
};

/// The loss on a link as a pure function of (seed, link, packet index).
/// Determinism: equal arguments give equal fates on every rank, thread count, device and query order.
/// Thread safety: all methods may be called from any thread at once. Random losses are stationary from packet 0, except
/// those of a trace that all links begin at its first packet. The losses of a Pattern are fixed.
class LossProcess {
 public:
  virtual ~LossProcess() = default;

  /// Sets the bit of each packet first_packet + i that the link loses, and clears it for the others.
  /// Shapes: lost.size() packets, any number, zero too. A mask of n is a prefix of the mask of n + m.
  virtual void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const = 0;

  /// The fates of one message, as draw(), for processes that look at more than the index: a pattern begins at the
  /// origin, and a clock runs on between messages.
  virtual void draw_message(std::uint64_t seed, const Link& link, const MessagePosition& place,
                            PacketMask& lost) const {
    draw(seed, link, place.first_packet, lost);
  }

  /// Whether everything is lost in some step. Then no number of repetitions helps.
  virtual bool can_lose_all() const { return loss_rate() >= 1; }

  /// The index of the draw of a message's first packet; its other packets have the next ones. Packets with neighbouring
  /// draws are neighbours: only between them do bursts and gaps run on.
  virtual std::uint64_t first_draw(const MessagePosition& place) const { return place.first_packet; }

  /// Whether it looks at MessagePosition::times, in any step.
  virtual bool keeps_time() const { return false; }

  /// The process in force in a training step; valid as long as this one. Only a schedule differs from step to step.
  virtual const LossProcess& at_step(std::uint64_t /*step*/) const { return *this; }

  /// False if no packet can ever be lost, in any step: callers then skip the loss layer.
  virtual bool can_lose() const { return loss_rate() > 0; }

  /// Long-run fraction of packets lost, in [0, 1].
  virtual double loss_rate() const = 0;

  /// Mean run of consecutive losses, in packets, at least 1; 0 if nothing is ever lost, infinity if all is.
  /// Source: RFC 3357 (loss period).
  virtual double mean_burst_packets() const = 0;

  /// Mean run of consecutive deliveries, in packets; infinity if nothing is ever lost, 0 if all is.
  virtual double mean_gap_packets() const = 0;

  /// P(a run of consecutive losses is at least `packets` long), for packets >= 1.
  virtual double burst_at_least(std::uint64_t packets) const = 0;

  /// P(a run of consecutive deliveries between two losses is at least `packets` long), for packets >= 1. NaN if no
  /// formula is known: then records hold no expected number of gaps.
  virtual double gap_at_least(std::uint64_t /*packets*/) const { return std::numeric_limits<double>::quiet_NaN(); }

  /// Variance of the number lost among n consecutive packets; the scale of every test of a realised rate.
  /// Source: Hasslinger and Hohlfeld 2008, second-order statistics.
  virtual double lost_count_variance(std::uint64_t n) const = 0;

  /// Whether fates follow from more than the index of a packet; then callers must ask draw_message() and
  /// message_count() for each message. Otherwise the losses of any n consecutive packets have mean n * loss_rate() and
  /// variance lost_count_variance(n).
  virtual bool counts_by_message() const { return false; }

  /// Mean and variance of the number lost of a message's n packets, by themselves. If a place fixes the fates, this is
  /// their count, with variance 0.
  virtual LostCount message_count(std::uint64_t /*seed*/, const Link& /*link*/, const MessagePosition& /*place*/,
                                  std::uint64_t n) const {
    return {static_cast<double>(n) * loss_rate(), lost_count_variance(n)};
  }

  /// The chain of the draws, from which covariances between packets that are not neighbours follow. Absent if the place
  /// of a packet fixes its fate, or if no such chain is known. `packet_microseconds`: the time of a packet of the link
  /// (PacketTimes), 0 if it has none of its own.
  virtual std::optional<FateChain> fate_chain(double /*packet_microseconds*/) const { return std::nullopt; }

  /// The contribution of a message's n packets to the mean and the variance of the number lost so far, if their fates
  /// follow from a clock (PacketTimes::departs_microseconds); absent otherwise. Messages are given in the order of
  /// their departures, with one `memory` for all.
  virtual std::optional<LostCount> count_by_clock(const MessagePosition& /*place*/, std::uint64_t /*n*/,
                                                  ClockMemory& /*memory*/) const {
    return std::nullopt;
  }

  /// This process as a chain of two states, if it is one.
  virtual std::optional<LossChain> chain() const { return can_lose() ? std::nullopt : std::optional(LossChain{}); }

  /// The integers from which a program can draw the fates by itself, for example on a device (chain_states.h); absent
  /// if fates need more than the draws of a chain of two states.
  virtual std::optional<ChainThresholds> thresholds() const { return std::nullopt; }

  /// Whether packets are known to be lost independently of each other, at one rate.
  bool is_independent() const { return chain().has_value() && chain()->memory == 0; }

  /// P(that many packets in a row all arrive), in the step in which it is lowest; packets >= 1. If the law of gaps is
  /// not known, they are taken as geometric.
  virtual double all_arrive_probability(std::uint64_t packets) const;

  /// The parameters in words for people, e.g. "bernoulli(loss_rate=0.01)".
  virtual std::string describe() const = 0;
};

}  // namespace droptest::sim
