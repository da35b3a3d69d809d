// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/burst_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "sim/loss/gilbert_elliott.h"

namespace droptest::sim::burst_histogram_test {
namespace {

using Counts = std::map<std::uint64_t, std::uint64_t>;

Counts naive_counts(const std::vector<bool>& lost) {
  Counts counts;
  std::uint64_t run = 0;
  for (const bool l : lost) {
    if (l) {
      ++run;
    } else if (run > 0) {
      ++counts[run];
      run = 0;
    }
  }
  if (run > 0) ++counts[run];
  return counts;
}

/// Adds the fates in pieces; their sizes cycle through `sizes`.
BurstHistogram in_pieces(const std::vector<bool>& lost, const std::vector<std::size_t>& sizes) {
  BurstHistogram histogram;
  std::size_t k = 0;
  for (std::size_t begin = 0; begin < lost.size();) {
    const std::size_t size = std::min(sizes[k++ % sizes.size()], lost.size() - begin);
    PacketMask mask(size);
    for (std::size_t i = 0; i < size; ++i) {
      if (lost[begin + i]) mask.set_lost(i);
    }
    histogram.add(mask);
    begin += size;
  }
  return histogram;
}

TEST(BurstHistogram, GapsAreCountedBetweenLossesOfOneStretch) {
  // Two delivered at the start and three at the end are no gaps; 1, 3 and 4 packets are.
  const std::vector<bool> lost = {0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0};
  for (const std::vector<std::size_t>& sizes : {std::vector<std::size_t>{18}, {1}, {3, 0, 5}}) {
    BurstHistogram histogram = in_pieces(lost, sizes);
    EXPECT_EQ(histogram.gaps(), (std::vector<std::uint64_t>{1, 1, 1}));
    EXPECT_EQ(histogram.stretches(), (Counts{{18, 1}}));
    // The packets before and after an interruption are not adjacent.
    histogram.interrupt();
    PacketMask next(2);
    next.set_lost(1);
    histogram.add(next);
    EXPECT_EQ(histogram.gaps(), (std::vector<std::uint64_t>{1, 1, 1}));
    EXPECT_EQ(histogram.stretches(), (Counts{{2, 1}, {18, 1}}));
  }
  // Over words: 2^7 - 1 packets between two losses.
  std::vector<bool> far(200, false);
  far[10] = far[138] = true;
  EXPECT_EQ(in_pieces(far, {200}).gaps(), (std::vector<std::uint64_t>{0, 0, 0, 0, 0, 0, 1}));
}

TEST(BurstHistogram, AStretchMayBeginWithALoss) {
  const BurstHistogram histogram = in_pieces({1, 0, 0, 1, 1}, {5});
  EXPECT_EQ(histogram.gaps(), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(histogram.counts(), (Counts{{1, 1}, {2, 1}}));
}

TEST(BurstHistogram, GapsOfMillionsOfPacketsCountToo) {
  PacketMask lost(1);
  lost.set_lost(0);
  BurstHistogram histogram;
  histogram.add(lost);
  for (const std::uint64_t delivered : {3U, (1U << 24) - 1, 1U << 24, 1U << 25}) {
    histogram.add(PacketMask(delivered));
    histogram.add(lost);
  }
  std::vector<std::uint64_t> expected(26);
  expected[1] = expected[23] = expected[24] = expected[25] = 1;
  EXPECT_EQ(histogram.gaps(), expected);
}

TEST(BurstHistogram, DoesNotDependOnHowPacketsAreCut) {
  for (const GilbertElliottRates& rates :
       {GilbertElliottRates{0.01, 0.25, 0, 1}, GilbertElliottRates{0.02, 0.005, 0.01, 0.999},
        GilbertElliottRates{0.6, 0.7, 0.1, 0.8}, GilbertElliottRates{0.3, 0, 0, 1}}) {
    PacketMask mask(20000);
    GilbertElliott(rates).draw(5, Link{}, 0, mask);
    std::vector<bool> lost(mask.size());
    for (std::size_t i = 0; i < lost.size(); ++i) lost[i] = mask.lost(i);
    const Counts want = naive_counts(lost);
    std::uint64_t bursts = 0;
    for (const auto& entry : want) bursts += entry.second;
    for (const std::vector<std::size_t>& sizes :
         std::vector<std::vector<std::size_t>>{{20000}, {1}, {64}, {63, 65, 1}, {7, 128, 1, 300}}) {
      const BurstHistogram histogram = in_pieces(lost, sizes);
      EXPECT_EQ(histogram.counts(), want);
      EXPECT_EQ(histogram.bursts(), bursts);
    }
  }
}

TEST(BurstHistogram, BurstOverWordsAndMasksIsOne) {
  PacketMask mask(200);
  for (std::uint64_t i = 60; i < 200; ++i) mask.set_lost(i);
  BurstHistogram histogram;
  histogram.add(mask);
  EXPECT_EQ(histogram.counts(), (Counts{{140, 1}}));
  EXPECT_EQ(histogram.counts(), (Counts{{140, 1}}));  // asking does not end the open burst
  histogram.add(PacketMask(0));
  PacketMask more(3);
  more.set_lost(0);
  more.set_lost(2);
  histogram.add(more);
  EXPECT_EQ(histogram.counts(), (Counts{{1, 1}, {141, 1}}));
  EXPECT_EQ(histogram.bursts(), 2U);
}

TEST(BurstHistogram, InterruptSeparatesNeighbours) {
  PacketMask mask(1);
  mask.set_lost(0);
  BurstHistogram histogram;
  histogram.add(mask);
  histogram.interrupt();
  histogram.interrupt();
  histogram.add(mask);
  EXPECT_EQ(histogram.counts(), (Counts{{1, 2}}));
}

TEST(BurstHistogram, NothingLostIsNoBurst) {
  BurstHistogram histogram;
  histogram.add(PacketMask(1000));
  EXPECT_TRUE(histogram.counts().empty());
  EXPECT_EQ(histogram.bursts(), 0U);
}

}  // namespace
}  // namespace droptest::sim::burst_histogram_test
