// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/scattered_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "sim/loss/burst_histogram.h"

namespace droptest::sim::scattered_runs_test {
namespace {

struct Piece {
  std::uint64_t first = 0;
  PacketMask lost;
};

/// Masks of 1 to `most` packets, some of them adjacent to the previous mask.
std::vector<Piece> random_pieces(std::mt19937& random, int number, std::uint64_t most, unsigned lost_of_eight) {
  std::vector<Piece> pieces;
  std::uint64_t next = random() % 100;
  bool is_lost = false;
  for (int i = 0; i < number; ++i) {
    PacketMask mask(1 + random() % most);
    for (std::uint64_t packet = 0; packet < mask.size(); ++packet) {
      if (random() % 3 == 0) is_lost = random() % 8 < lost_of_eight;
      if (is_lost) mask.set_lost(packet);
    }
    pieces.push_back({next, mask});
    next += mask.size() + (random() % 3 == 0 ? 1 + random() % 5 : 0);
  }
  return pieces;
}

/// The counts of the same packets in order, with an interruption wherever draws are left out.
BurstHistogram in_order(std::vector<Piece> pieces) {
  std::ranges::sort(pieces, {}, &Piece::first);
  BurstHistogram histogram;
  std::uint64_t next = 0;
  for (const Piece& piece : pieces) {
    if (piece.first != next) histogram.interrupt();
    histogram.add(piece.lost);
    next = piece.first + piece.lost.size();
  }
  return histogram;
}

void expect_same(const RunCounts& got, const BurstHistogram& expected) {
  EXPECT_EQ(got.bursts(), expected.counts());
  EXPECT_EQ(got.gaps(), expected.gaps());
  EXPECT_EQ(got.stretches(), expected.stretches());
}

TEST(ScatteredRuns, AreThoseOfTheSamePacketsInOrder) {
  std::mt19937 random(3);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same masks each time
  for (const unsigned lost_of_eight : {0U, 1U, 4U, 7U, 8U}) {
    for (const std::uint64_t most : {1U, 3U, 63U, 64U, 200U}) {
      for (int repetition = 0; repetition < 20; ++repetition) {
        std::vector<Piece> pieces = random_pieces(random, 60, most, lost_of_eight);
        const BurstHistogram expected = in_order(pieces);
        std::ranges::shuffle(pieces, random);
        ScatteredRuns runs;
        for (const Piece& piece : pieces) runs.add(piece.first, piece.lost);
        expect_same(runs.counts(), expected);
      }
    }
  }
}

TEST(ScatteredRuns, MayBeReadBetweenMessages) {
  std::mt19937 random(4);  // NOLINT(cert-msc32-c,cert-msc51-cpp)
  std::vector<Piece> pieces = random_pieces(random, 40, 9, 4);
  std::ranges::shuffle(pieces, random);
  ScatteredRuns runs;
  for (std::size_t number = 1; number <= pieces.size(); ++number) {
    runs.add(pieces[number - 1].first, pieces[number - 1].lost);
    const auto so_far = pieces.begin() + static_cast<std::ptrdiff_t>(number);
    expect_same(runs.counts(), in_order({pieces.begin(), so_far}));
  }
}

TEST(ScatteredRuns, StretchesThatNobodyGoesOnWithEnd) {
  PacketMask lost(2);
  lost.set_lost(1);
  ScatteredRuns runs;
  for (std::uint64_t message = 0; message < 3000; ++message) runs.add(4 * message, lost);
  runs.add(4 * 3000 - 2, lost);
  const RunCounts counts = runs.counts();
  EXPECT_EQ(counts.stretches(), (std::map<std::uint64_t, std::uint64_t>{{2, 2999}, {4, 1}}));
  EXPECT_EQ(counts.bursts(), (std::map<std::uint64_t, std::uint64_t>{{1, 3001}}));
  EXPECT_EQ(counts.gaps(), std::vector<std::uint64_t>{1});
}

TEST(ScatteredRuns, DrawsThatWereUsedBeforeAreAStretchOfTheirOwn) {
  PacketMask lost(4);
  lost.set_lost(3);
  ScatteredRuns runs;
  for (const std::uint64_t first : {10U, 12U, 10U, 7U, 6U}) runs.add(first, lost);
  EXPECT_EQ(runs.counts().stretches(), (std::map<std::uint64_t, std::uint64_t>{{4, 3}, {8, 1}}));
  EXPECT_EQ(runs.counts().bursts(), (std::map<std::uint64_t, std::uint64_t>{{1, 5}}));
}

}  // namespace
}  // namespace droptest::sim::scattered_runs_test
