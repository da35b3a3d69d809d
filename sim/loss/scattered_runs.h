// SPDX-License-Identifier: Apache-2.0
// The bursts and gaps of a link whose messages come in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "sim/loss/packet_mask.h"
#include "sim/loss/run_counts.h"
#include "sim/state_visitor.h"

namespace droptest::sim {

/// Counts bursts, gaps and stretches as BurstHistogram does if the same packets come in the order of their draws.
/// Messages with neighbouring draws (LossProcess::first_draw()) are neighbours in whatever order they come.
class ScatteredRuns {
 public:
  /// Largest number of stretches that another message may still lengthen. If there are more, the one that is farthest
  /// from the last message ends.
  static constexpr std::size_t kMostStretches = 256;

  /// Takes the fates of the packets with draws from first_draw on. A message whose draws were used before is a stretch
  /// of its own.
  void add(std::uint64_t first_draw, const FatesView& lost);

  /// Counts of all messages so far; bursts that another message may still lengthen count with their lengths so far.
  RunCounts counts() const;

  void visit_state(StateVisitor& visitor) { visit_values(visitor, ended_, stretches_); }

 private:
  // Neighbouring packets. The gaps and inner bursts of a stretch are in ended_; a burst at its edge may become longer.
  struct Stretch {
    std::uint64_t packets = 0;
    std::uint64_t before = 0;       ///< packets before the first loss; all if none is lost
    std::uint64_t behind = 0;       ///< packets behind the last loss; all if none is lost
    std::uint64_t first_burst = 0;  ///< length of the burst that the stretch begins with; 0: none
    std::uint64_t last_burst = 0;   ///< length of the burst that the stretch ends with; 0: none
    bool has_losses() const { return before < packets; }
    bool is_all_lost() const { return first_burst == packets; }
    void visit_state(StateVisitor& visitor) { visit_values(visitor, packets, before, behind, first_burst, last_burst); }
  };
  using Stretches = std::map<std::uint64_t, Stretch>;  // keys: the draw of the first packet

  Stretch count_inner(const FatesView& lost);
  Stretch joined(const Stretch& left, const Stretch& right);
  static void end(const Stretch& stretch, RunCounts& counts);

  RunCounts ended_;
  Stretches stretches_;
};

}  // namespace droptest::sim
