// SPDX-License-Identifier: Apache-2.0
// Repair of lost packets by the two ends of a link, before the fill sees them. Smallest example: go_back_0.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "sim/loss/loss_process.h"
#include "sim/loss/packet_mask.h"
#include "sim/state_visitor.h"
#include "sim/time/link_cost.h"

namespace droptest::sim {

/// The cost of one message after its first transmission.
struct Repair {
  std::uint64_t lost_data_packets = 0;  ///< lost data packets of the first transmission
  std::uint64_t resent_packets = 0;     ///< repeated packets, each as often as it was sent again; at most extra_slots
  std::uint64_t rounds = 1;             ///< times that the sender sent, including the first one
  double extra_slots = 0;               ///< packet times beyond those of the packets sent at first
  double waiting_seconds = 0;           ///< waits beyond the slots, for acknowledgements and timers

  /// The time that the repair adds to the first transmission.
  double extra_seconds(double slot_seconds) const { return extra_slots * slot_seconds + waiting_seconds; }
  /// The part of extra_seconds with packets on the wire. The rest passes in empty slots and in waits.
  double wire_seconds(double slot_seconds) const { return static_cast<double>(resent_packets) * slot_seconds; }
  double idle_seconds(double slot_seconds) const {
    return (extra_slots - static_cast<double>(resent_packets)) * slot_seconds + waiting_seconds;
  }
  void visit_state(StateVisitor& visitor) {
    visit_values(visitor, lost_data_packets, resent_packets, rounds, extra_slots, waiting_seconds);
  }
};

/// One more transmission of a message's data packets.
struct Attempt {
  std::uint64_t number = 0;  ///< 0 is the first transmission, 1 the first repetition
  std::uint64_t slot = 0;    ///< packet i goes slot + i slots after the message's first packet
};

/// A way to repair a message on its link. A message of n data packets goes out as first_packets(n) packets, data and
/// redundancy, in an order that the recovery defines. It repairs their losses as far as it can.
/// Thread safety: all methods may be called from any thread at once.
/// Determinism: a pure function of its arguments. Monotone: fewer losses leave fewer packets missing.
class LinkRecovery {
 public:
  /// Sets the fates of data packets first_packet onwards in an attempt.
  using DrawAgain = std::function<void(const Attempt& attempt, std::uint64_t first_packet, PacketMask& lost)>;

  virtual ~LinkRecovery() = default;

  /// Packets that go out at first for a message of that many data packets: at least as many.
  virtual std::uint64_t first_packets(std::uint64_t data_packets) const = 0;

  /// Index of a data packet among first_packets(data_packets).
  virtual std::uint64_t position(std::uint64_t data_packet, std::uint64_t data_packets) const = 0;

  /// Sets the data packets that stay missing. Shapes: `lost` has first_packets(missing.size()) bits; `missing` has one
  /// per data packet, all clear. Throws: ConfigError if an unlimited number of rounds does not get the message across.
  virtual Repair recover(const PacketMask& lost, const DrawAgain& draw_again, const LinkTiming& timing,
                         PacketMask& missing) const = 0;

  /// Long-run fraction of the data packets of such messages that stay missing on a link with that loss; nothing if no
  /// closed form is known. Assumes independent draws for each attempt, as without a clock (docs/fates.md).
  virtual std::optional<double> residual_rate(const LossProcess& process, std::uint64_t data_packets) const = 0;

  /// The residual rate of a long message: its last, shorter block does not matter.
  virtual std::optional<double> residual_rate(const LossProcess& process) const = 0;

  /// Whether every data packet arrives in the end, unless nothing ever does.
  virtual bool is_reliable() const { return false; }

  /// Whether the sender may send more than first_packets(), which takes time.
  virtual bool sends_again() const { return false; }

  /// Mean number of transmissions until a packet (by go-back-0: the whole message) has arrived, without a budget of
  /// rounds; infinity if it never arrives. Exact for independent loss.
  virtual double expected_tries(const LossProcess& /*process*/, std::uint64_t /*packets*/) const { return 1; }

  /// The parameters in words for people, e.g. "parity(data=8, parity=2)".
  virtual std::string describe() const = 0;
};

/// The fates of repetitions if time is not counted: each attempt has draws of its own (docs/fates.md), as if the link
/// had forgotten its state. `first_packet`: the index of the message's first packet. `process` is borrowed.
LinkRecovery::DrawAgain draws_by_attempt(const LossProcess& process, std::uint64_t seed, const Link& link,
                                         std::uint64_t first_packet);

/// The fates of repetitions if time is counted: the link's slots go by while the sender waits, and a repetition has the
/// fate of its slot. So it may meet the burst that lost the packet. `process` is borrowed.
LinkRecovery::DrawAgain draws_by_slot(const LossProcess& process, std::uint64_t seed, const Link& link,
                                      const MessagePosition& place);

/// The first lost packet of `mask`; its size if there is none.
std::uint64_t first_lost(const PacketMask& mask);

}  // namespace droptest::sim
