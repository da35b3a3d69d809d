// SPDX-License-Identifier: Apache-2.0
// How long the bursts of a link are, and the gaps between them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sim/loss/packet_mask.h"
#include "sim/loss/run_counts.h"
#include "sim/state_visitor.h"

namespace droptest::sim {

/// Counts runs of consecutive losses (bursts) and of consecutive deliveries between two losses (gaps) by length. The
/// masks of one link are given in the order of its packets; a run may span masks, and the counts do not depend on how
/// the packets were cut into masks.
class BurstHistogram {
 public:
  /// Takes the fates of the link's next packets.
  void add(const FatesView& lost);

  /// Ends the stretch of neighbouring packets, and a burst that is open in it: the next packet is not the neighbour of
  /// the last one.
  void interrupt();

  /// Burst length in packets -> how many; a run that is open counts with its length so far.
  std::map<std::uint64_t, std::uint64_t> counts() const;

  /// Number of bursts, an open one too.
  std::uint64_t bursts() const;

  /// Number of gaps of 2^i to 2^(i + 1) - 1 packets, by i. A gap counts where it lies between two losses of one
  /// stretch: of one that a stretch begins or ends with, the length is not known.
  std::vector<std::uint64_t> gaps() const { return ended_.gaps(); }

  /// Length of a stretch in packets -> how many, the open one too. expected_gaps() needs them.
  std::map<std::uint64_t, std::uint64_t> stretches() const;

  void visit_state(StateVisitor& visitor) { visit_values(visitor, open_, delivered_, stretch_, losses_, ended_); }

 private:
  void add_losses(std::span<const std::uint32_t> losses, std::uint64_t packets);
  void count_gap(std::uint64_t length);

  // The members that every mask changes come first and lie together: a rank has many links, and the cache has dropped
  // a link's members when its next mask comes.
  std::uint64_t open_ = 0;       ///< length of the run that the last packet is in; 0 if it was delivered
  std::uint64_t delivered_ = 0;  ///< packets since the last loss of the open stretch
  std::uint64_t stretch_ = 0;    ///< its packets so far
  enum class Losses : std::uint8_t { kNone, kSome } losses_ = Losses::kNone;  ///< in it
  RunCounts ended_;
};

}  // namespace droptest::sim
