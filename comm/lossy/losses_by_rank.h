// SPDX-License-Identifier: Apache-2.0
// What each rank's message lost, kept beyond the ledger's next draw.
#pragma once

#include <vector>

#include "sim/loss/packet_mask.h"

namespace droptest::comm {

/// A mask for each rank of a group, in memory that is used again.
class LossesByRank {
 public:
  /// Starts with nothing lost.
  void start(int ranks) {
    masks_.resize(static_cast<std::size_t>(ranks));
    for (sim::PacketMask& mask : masks_) mask.resize(0);
  }
  /// Takes a copy, which is returned; null: all arrived.
  const sim::PacketMask* set(int rank, const sim::PacketMask* lost) {
    if (lost != nullptr) masks_[static_cast<std::size_t>(rank)] = *lost;
    return of(rank);
  }
  /// Null: all arrived.
  const sim::PacketMask* of(int rank) const {
    const sim::PacketMask& mask = masks_[static_cast<std::size_t>(rank)];
    return mask.size() == 0 ? nullptr : &mask;
  }
 private:
  std::vector<sim::PacketMask> masks_;  // of size 0 where all arrived
};

}  // namespace droptest::comm
