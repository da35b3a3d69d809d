// SPDX-License-Identifier: Apache-2.0
// The fates of a link in the order of its packets, with their digest and their bursts.
#pragma once

#include <array>
#include <cstdint>

#include "sim/loss/burst_histogram.h"
#include "sim/loss/fate_digest.h"
#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"
#include "sim/loss/packet_mask.h"
#include "sim/state_visitor.h"

namespace droptest::sim {

/// Draws the fates of a link's messages, and keeps their digest and their bursts. Messages come in the order of their
/// draws; a message that does not follow at once on the one before interrupts the bursts. Short messages that follow on
/// each other are drawn and counted many at a time, partly before their use and partly after it. That costs less than
/// one by one, and gives the same fates, digest and bursts.
class CountedFates {
 public:
  explicit CountedFates(const Link& link) : link_(link), digest_(link) {}

  /// Draws the fates of the next lost.size() packets like process.draw(), and counts them. `process` outlives this
  /// object and derives fates only from the index of packets: its counts_by_message() is false.
  void draw(const LossProcess& process, std::uint64_t seed, std::uint64_t first_packet, PacketMask& lost);

  /// Counts fates that were drawn elsewhere. `first_draw`: LossProcess::first_draw() of the message.
  void add(std::uint64_t first_packet, std::uint64_t first_draw, const PacketMask& lost);

  /// FateDigest::add_apart(): takes fates only into the digest.
  void digest_apart(std::uint64_t first_packet, const PacketMask& lost) { digest_.add_apart(first_packet, lost); }

  /// FateDigest::value() of all fates so far.
  std::uint64_t digest() const;
  /// The bursts of all fates so far.
  BurstHistogram bursts() const;

  /// Visits all but the link. Fates that were drawn ahead are drawn again after a restore.
  void visit_state(StateVisitor& visitor);

 private:
  static constexpr std::uint64_t kWordPackets = 64;
  static constexpr std::uint64_t kMostWords = 80;
  static constexpr std::uint64_t kMostWordsAhead = 60;
  /// Largest message that is drawn together with others: longer ones cost no less that way.
  static constexpr std::uint64_t kMostPackets = 20 * kWordPackets;

  void begin_run(const LossProcess& process, std::uint64_t seed, std::uint64_t first_packet);
  void end_run(std::uint64_t next_draw);
  void draw_ahead(std::uint64_t packets, PacketMask& buffer);
  void make_room();
  void copy_drawn(std::uint64_t first_packet, std::uint64_t packets, std::uint64_t* words) const;
  void count_until(std::uint64_t packet);

  // A run is a sequence of packets that follow on each other under one process. Indices are counted modulo 2^64.
  const LossProcess* process_ = nullptr;  ///< null: no run
  std::uint64_t seed_ = 0;
  std::uint64_t run_begin_ = 0;
  std::uint64_t counted_ = 0;  ///< the first packet that is not counted yet
  std::uint64_t next_ = 0;   ///< the first packet that is not used yet; without a run the draw behind the last message
  std::uint64_t begin_ = 0;  ///< the first packet of drawn_, a multiple of 64
  std::uint64_t words_ = 0;  ///< the number of words in drawn_
  Link link_;
  FateDigest digest_;
  BurstHistogram bursts_;
  /// One word per 64 packets; the last word is read, but never used.
  std::array<std::uint64_t, kMostWords + 1> drawn_{};
};

}  // namespace droptest::sim
