// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/fate_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "sim/loss/bernoulli.h"

namespace droptest::sim::fate_digest_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kReduce, 2, 3};

std::uint64_t digest_in_pieces(const LossProcess& process, std::uint64_t first, std::uint64_t packets,
                               const std::vector<std::uint64_t>& sizes) {
  FateDigest digest(kLink);
  std::size_t k = 0;
  for (std::uint64_t done = 0; done < packets;) {
    PacketMask mask(std::min(sizes[k++ % sizes.size()], packets - done));
    process.draw(9, kLink, first + done, mask);
    digest.add(first + done, mask);
    done += mask.size();
  }
  return digest.value();
}

TEST(FateDigest, DoesNotDependOnHowPacketsAreCut) {
  for (const double p : {0.0, 0.001, 0.3, 1.0}) {
    const Bernoulli process(p);
    // The last range runs over the end of the index.
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{37}, std::uint64_t{0} - 777}) {
      const std::uint64_t whole = digest_in_pieces(process, first, 3001, {3001});
      EXPECT_EQ(digest_in_pieces(process, first, 3001, {1}), whole);
      EXPECT_EQ(digest_in_pieces(process, first, 3001, {64}), whole);
      EXPECT_EQ(digest_in_pieces(process, first, 3001, {63, 1, 65, 200}), whole);
      EXPECT_EQ(digest_in_pieces(process, first, 3001, {5, 1000}), whole);
    }
  }
}

TEST(FateDigest, EachFateCounts) {
  std::set<std::uint64_t> digests;
  for (std::uint64_t flipped = 0; flipped < 300; ++flipped) {
    PacketMask mask(300);
    mask.set_lost(flipped);
    FateDigest digest(kLink);
    digest.add(11, mask);
    digests.insert(digest.value());
  }
  EXPECT_EQ(digests.size(), 300U);
}

TEST(FateDigest, LinkRangeAndPlaceCount) {
  PacketMask mask(100);
  mask.set_lost(64);
  std::set<std::uint64_t> digests;
  const auto add = [&](const Link& link, std::uint64_t first, const PacketMask& lost) {
    FateDigest digest(link);
    digest.add(first, lost);
    digests.insert(digest.value());
  };
  add(kLink, 0, mask);
  add(kLink, 1, mask);
  add(kLink, 64, mask);
  add({TrafficClass::kTpBackward, Half::kReduce, 2, 3}, 0, mask);
  add({TrafficClass::kTpForward, Half::kGather, 2, 3}, 0, mask);
  add({TrafficClass::kTpForward, Half::kReduce, 3, 2}, 0, mask);
  add({TrafficClass::kTpForward, Half::kReduce, 2, Link::kEveryDestination}, 0, mask);
  add(kLink, 0, PacketMask(100));
  add(kLink, 0, PacketMask(101));
  add(kLink, 5, PacketMask(100));
  EXPECT_EQ(digests.size(), 10U);
}

TEST(FateDigest, RangesApartDifferFromOneRange) {
  FateDigest together(kLink);
  together.add(0, PacketMask(20));
  FateDigest apart(kLink);
  apart.add(0, PacketMask(10));
  apart.add(30, PacketMask(10));
  EXPECT_NE(together.value(), apart.value());
}

TEST(FateDigest, RangesApartInOneWordKeepTheirLosses) {
  PacketMask one(10);
  one.set_lost(3);
  FateDigest with(kLink);
  with.add(0, one);
  with.add(20, one);
  FateDigest first_only(kLink);
  first_only.add(0, one);
  first_only.add(20, PacketMask(10));
  FateDigest second_only(kLink);
  second_only.add(0, PacketMask(10));
  second_only.add(20, one);
  EXPECT_NE(with.value(), first_only.value());
  EXPECT_NE(with.value(), second_only.value());
  EXPECT_NE(first_only.value(), second_only.value());
}

TEST(FateDigest, NothingYetIsZeroAndEmptyRangesAddNothing) {
  FateDigest digest(kLink);
  EXPECT_EQ(digest.value(), 0U);
  digest.add(17, PacketMask(0));
  EXPECT_EQ(digest.value(), 0U);
}

}  // namespace
}  // namespace droptest::sim::fate_digest_test
