// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/burst_histogram.h"

#include <algorithm>
#include <bit>

namespace droptest::sim {

inline void BurstHistogram::end_burst() {
  if (open_ == 0) return;
  ++bursts_;
  ++(open_ < kBins ? bins_[open_].bursts : long_[open_]);
  open_ = 0;
}

// The gap before it is over. Two bursts are never neighbours, so that a gap has at least one packet.
inline void BurstHistogram::begin_burst() {
  if (losses_ == Losses::kSome) ++bins_[static_cast<std::size_t>(std::bit_width(delivered_) - 1)].gaps;
  losses_ = Losses::kSome;
  delivered_ = 0;
}

void BurstHistogram::add(const PacketMask& lost) {
  std::uint64_t left = lost.size();
  stretch_ += left;
  for (std::uint64_t word : lost.words()) {
    const int packets = static_cast<int>(std::min<std::uint64_t>(left, 64));
    left -= static_cast<std::uint64_t>(packets);
    if (word == 0) {
      end_burst();
      delivered_ += static_cast<std::uint64_t>(packets);
      continue;
    }
    for (int next = 0; next < packets;) {
      // Bits shifted in at the top are clear, and so are those past the mask: a run of ones ends at the last packet.
      const int ones = std::countr_one(word);
      if (ones > 0 && open_ == 0) begin_burst();
      open_ += static_cast<std::uint64_t>(ones);
      next += ones;
      if (next >= packets) break;
      end_burst();
      word >>= ones;
      const int zeros = word == 0 ? packets - next : std::countr_zero(word);
      delivered_ += static_cast<std::uint64_t>(zeros);
      if (word == 0) break;
      word >>= zeros;
      next += zeros;
    }
  }
}

void BurstHistogram::interrupt() {
  end_burst();
  if (stretch_ > 0) ++stretches_[stretch_];
  stretch_ = 0;
  delivered_ = 0;
  losses_ = Losses::kNone;
}

std::vector<std::uint64_t> BurstHistogram::gaps() const {
  std::vector<std::uint64_t> all;
  for (std::size_t i = 0; i < kBins; ++i) {
    if (bins_[i].gaps == 0) continue;
    all.resize(i + 1);
    all[i] = bins_[i].gaps;
  }
  return all;
}

std::map<std::uint64_t, std::uint64_t> BurstHistogram::stretches() const {
  std::map<std::uint64_t, std::uint64_t> all = stretches_;
  if (stretch_ > 0) ++all[stretch_];
  return all;
}

std::map<std::uint64_t, std::uint64_t> BurstHistogram::counts() const {
  std::map<std::uint64_t, std::uint64_t> all = long_;
  for (std::uint64_t length = 0; length < kBins; ++length) {
    if (bins_[length].bursts > 0) all[length] = bins_[length].bursts;
  }
  if (open_ > 0) ++all[open_];
  return all;
}

}  // namespace droptest::sim
