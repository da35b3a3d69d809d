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

  /// Ends the stretch of neighbouring packets and the burst that is open in it: the next packet does not follow on the
  /// last one.
  void interrupt();

  /// Number of bursts by length in packets; an open burst counts with its length so far.
  std::map<std::uint64_t, std::uint64_t> counts() const;

  /// Number of bursts, including an open one.
  std::uint64_t bursts() const;

  /// Number of gaps of 2^i to 2^(i + 1) - 1 packets, by i. A gap counts only if it lies between two losses of one
  /// stretch: the length of a gap at the edge of a stretch is not known.
  std::vector<std::uint64_t> gaps() const { return ended_.gaps(); }

  /// Number of stretches by length in packets, including the open one. expected_gaps() needs them.
  std::map<std::uint64_t, std::uint64_t> stretches() const;

  void visit_state(StateVisitor& visitor) { visit_values(visitor, open_, delivered_, stretch_, losses_, ended_); }

 private:
  void add_losses(std::span<const std::uint32_t> losses, std::uint64_t packets);
  void count_gap(std::uint64_t length);

  // The members that every mask changes come first and lie together: a rank has many links, and the cache has dropped
  // a link's members when its next mask comes.
  std::uint64_t open_ = 0;       ///< length of the burst that the last packet is in; 0 if that packet was delivered
  std::uint64_t delivered_ = 0;  ///< packets since the last loss of the open stretch
  std::uint64_t stretch_ = 0;    ///< packets of the open stretch so far
  enum class Losses : std::uint8_t { kNone, kSome } losses_ = Losses::kNone;  ///< whether the open stretch has a loss
  RunCounts ended_;
};

}  // namespace droptest::sim
