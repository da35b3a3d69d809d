// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/burst_histogram.h"

#include <algorithm>
#include <bit>
#include <span>

namespace droptest::sim {
namespace {

// The places of set bits. Most words have few: that many are looked for in each word without a branch. No processor
// could predict a branch on their number.
std::span<const std::uint32_t> set_bits(std::span<const std::uint64_t> words, std::span<std::uint32_t> places) {
  constexpr int kFew = 2;
  constexpr std::uint64_t kTop = std::uint64_t{1} << 63;  // a place for the bit of a word that has none
  std::size_t number = 0;
  std::uint32_t begin = 0;
  for (std::uint64_t word : words) {
    for (int i = 0; i < kFew; ++i) {
      places[number] = begin + static_cast<std::uint32_t>(std::countr_zero(word | kTop));
      number += word == 0 ? 0 : 1;
      word &= word - 1;
    }
    for (; word != 0; word &= word - 1) places[number++] = begin + static_cast<std::uint32_t>(std::countr_zero(word));
    begin += 64;
  }
  return places.first(number);
}

}  // namespace

void BurstHistogram::add(const FatesView& lost) {
  constexpr std::size_t kTileWords = 8;
  std::array<std::uint32_t, kTileWords * 64 + 1> losses;  // one more: set_bits() looks for a bit that may not be there
  for (std::size_t tile = 0; tile < lost.words.size(); tile += kTileWords) {
    const std::span<const std::uint64_t> words =
        lost.words.subspan(tile, std::min(kTileWords, lost.words.size() - tile));
    add_losses(set_bits(words, losses), std::min<std::uint64_t>(64 * words.size(), lost.packets - 64 * tile));
  }
}

// Adds the next packets of the link; those at `losses` are lost.
void BurstHistogram::add_losses(std::span<const std::uint32_t> losses, std::uint64_t packets) {
  // Local copies: writes to the counts cannot change them.
  std::uint64_t open = open_;
  // The packet behind the last loss: the packets delivered since then are before these.
  std::uint64_t behind = std::uint64_t{0} - delivered_;
  for (const std::uint64_t loss : losses) {
    const std::uint64_t gap = loss - behind;
    behind = loss + 1;
    if (gap == 0 && open > 0) {
      ++open;
      continue;
    }
    ended_.count_burst(open);
    count_gap(gap);
    open = 1;
  }
  delivered_ = packets - behind;
  if (delivered_ > 0) {
    ended_.count_burst(open);
    open = 0;
  }
  open_ = open;
  stretch_ += packets;
}

// Counts the gap before a burst. Two bursts are never neighbours, so a gap between two has at least one packet.
inline void BurstHistogram::count_gap(std::uint64_t length) {
  if (losses_ == Losses::kSome) ended_.count_gap(length);
  losses_ = Losses::kSome;
}

void BurstHistogram::interrupt() {
  ended_.count_burst(open_);
  open_ = 0;
  ended_.count_stretch(stretch_);
  stretch_ = 0;
  delivered_ = 0;
  losses_ = Losses::kNone;
}

std::uint64_t BurstHistogram::bursts() const {
  std::uint64_t all = 0;
  for (const auto& [length, number] : counts()) all += number;
  return all;
}

std::map<std::uint64_t, std::uint64_t> BurstHistogram::stretches() const {
  std::map<std::uint64_t, std::uint64_t> all = ended_.stretches();
  if (stretch_ > 0) ++all[stretch_];
  return all;
}

std::map<std::uint64_t, std::uint64_t> BurstHistogram::counts() const {
  std::map<std::uint64_t, std::uint64_t> all = ended_.bursts();
  if (open_ > 0) ++all[open_];
  return all;
}

}  // namespace droptest::sim
