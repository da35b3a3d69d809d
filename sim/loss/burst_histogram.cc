// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/burst_histogram.h"

#include <algorithm>
#include <bit>

namespace droptest::sim {

void BurstHistogram::add(const PacketMask& lost) {
  // Copies, which no count that is written can change.
  std::uint64_t open = open_;
  std::uint64_t delivered = delivered_;
  std::uint64_t left = lost.size();
  stretch_ += left;
  for (std::uint64_t word : lost.words()) {
    const int packets = static_cast<int>(std::min<std::uint64_t>(left, 64));
    left -= static_cast<std::uint64_t>(packets);
    for (int next = 0; next < packets;) {
      // Bits shifted in at the top are clear, and so are those past the mask.
      const int zeros = word == 0 ? packets - next : std::countr_zero(word);
      if (zeros > 0) {
        count_burst(open);
        open = 0;
        delivered += static_cast<std::uint64_t>(zeros);
        next += zeros;
        if (word == 0) break;
        word >>= zeros;
      }
      const int ones = std::countr_one(word);
      if (open == 0) {
        count_gap(delivered);
        delivered = 0;
      }
      open += static_cast<std::uint64_t>(ones);
      next += ones;
      if (next >= packets) break;
      word >>= ones;
    }
  }
  open_ = open;
  delivered_ = delivered;
}

inline void BurstHistogram::count_burst(std::uint64_t length) {
  if (length == 0) return;
  ++bursts_;
  ++(length < kBins ? bins_[length].bursts : long_[length]);
}

// The one before a burst. Two bursts are never neighbours, so that a gap between two has at least one packet.
inline void BurstHistogram::count_gap(std::uint64_t length) {
  if (losses_ == Losses::kSome) ++bins_[static_cast<std::size_t>(std::bit_width(length) - 1)].gaps;
  losses_ = Losses::kSome;
}

void BurstHistogram::interrupt() {
  count_burst(open_);
  open_ = 0;
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
