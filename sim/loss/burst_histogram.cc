// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/burst_histogram.h"

#include <algorithm>
#include <bit>

namespace droptest::sim {

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

void BurstHistogram::end_burst() {
  if (open_ > 0) count(open_);
  open_ = 0;
}

// The gap before it is over. Two bursts are never neighbours, so that a gap has at least one packet.
void BurstHistogram::begin_burst() {
  if (losses_ == Losses::kSome) {
    const auto bin = static_cast<std::size_t>(std::bit_width(delivered_) - 1);
    if (gaps_.size() <= bin) gaps_.resize(bin + 1);
    ++gaps_[bin];
  }
  losses_ = Losses::kSome;
  delivered_ = 0;
}

std::map<std::uint64_t, std::uint64_t> BurstHistogram::stretches() const {
  std::map<std::uint64_t, std::uint64_t> all = stretches_;
  if (stretch_ > 0) ++all[stretch_];
  return all;
}

void BurstHistogram::count(std::uint64_t length) {
  ++bursts_;
  constexpr std::uint64_t kShort = 64;
  if (length < kShort) {
    // As long as the longest so far: most links of a large group see a few lengths only.
    if (length >= short_.size()) short_.resize(length + 1);
    ++short_[length];
  } else {
    ++long_[length];
  }
}

std::map<std::uint64_t, std::uint64_t> BurstHistogram::counts() const {
  std::map<std::uint64_t, std::uint64_t> all = long_;
  for (std::uint64_t length = 0; length < short_.size(); ++length) {
    if (short_[length] > 0) all[length] = short_[length];
  }
  if (open_ > 0) ++all[open_];
  return all;
}

}  // namespace droptest::sim
