// SPDX-License-Identifier: Apache-2.0
// How long the bursts of a link are.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/loss/packet_mask.h"

namespace droptest::sim {

/// Counts runs of consecutive losses by length. The masks of one link are given in the order of its packets; a run may
/// span masks, and the counts do not depend on how the packets were cut into masks.
class BurstHistogram {
 public:
  /// Takes the fates of the link's next packets.
  void add(const PacketMask& lost);

  /// Ends a run that is open: the next packet is not the neighbour of the last one.
  void interrupt();

  /// Burst length in packets -> how many; a run that is open counts with its length so far.
  std::map<std::uint64_t, std::uint64_t> counts() const;

  /// Number of bursts, an open one too.
  std::uint64_t bursts() const { return bursts_ + (open_ > 0 ? 1 : 0); }

 private:
  void count(std::uint64_t length);

  std::vector<std::uint64_t> short_;             ///< counts of lengths below 64, where nearly all are, by length
  std::map<std::uint64_t, std::uint64_t> long_;  ///< of the others
  std::uint64_t bursts_ = 0;
  std::uint64_t open_ = 0;  ///< length of the run that the last packet is in; 0 if it was delivered
};

}  // namespace droptest::sim
