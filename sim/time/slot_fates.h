// SPDX-License-Identifier: Apache-2.0
// The fates of whatever a link carries, slot by slot: what retransmission protocols walk along.
#pragma once

#include <cstdint>

#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"
#include "sim/loss/packet_mask.h"

namespace droptest::sim {

/// A slot is the time of one packet on a link. Which slots lose what they carry is the loss process's word, whether
/// the slot carries a packet for the first time, again, or nothing: a burst lasts on while the sender waits.
/// Fates are drawn in blocks, as they are asked for. `process` is borrowed.
class SlotFates {
 public:
  /// Questions and drawn blocks after which a walk is given up: some seconds of work, far beyond any message that
  /// gets across within kMostExpectedTries.
  static constexpr std::uint64_t kMostLooks = std::uint64_t{1} << 25;

  SlotFates(const LossProcess& process, std::uint64_t seed, const Link& link, std::uint64_t first_slot);

  /// Both throw ConfigError after kMostLooks. Number lost among slots [slot, slot + count), counted from the first.
  std::uint64_t lost_count(std::uint64_t slot, std::uint64_t count);

  /// The first slot in [slot, slot + count) that is lost; slot + count where all are delivered.
  std::uint64_t first_lost(std::uint64_t slot, std::uint64_t count);

 private:
  void look();
  const PacketMask& block_at(std::uint64_t slot);

  const LossProcess& process_;
  std::uint64_t seed_;
  Link link_;
  std::uint64_t first_slot_;
  std::uint64_t looks_ = 0;
  std::uint64_t block_ = 0;
  PacketMask mask_;  // of the block; empty before the first
};

}  // namespace droptest::sim
