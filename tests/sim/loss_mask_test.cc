// SPDX-License-Identifier: Apache-2.0
// Masks are a pure function of the packets: the same fates however, wherever and in whatever order they are asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/no_loss.h"
#include "tests/sim/naive_fates.h"

namespace droptest::sim::loss_mask_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kReduce, 1, 2};

PacketMask drawn(const LossProcess& process, std::uint64_t seed, const Link& link, std::uint64_t first,
                 std::uint64_t packets) {
  PacketMask mask(packets);
  // The bits of the mask before the draw must not matter.
  std::fill(mask.words().begin(), mask.words().end(), ~std::uint64_t{0});
  if (packets % 64 != 0) mask.words().back() >>= 64 - packets % 64;
  process.draw(seed, link, first, mask);
  EXPECT_EQ(mask.size(), packets);
  if (packets % 64 != 0) {
    EXPECT_EQ(mask.words().back() >> (packets % 64), 0U);
  }
  return mask;
}

PacketMask piece(const PacketMask& whole, std::uint64_t first, std::uint64_t packets) {
  PacketMask mask(packets);
  for (std::uint64_t i = 0; i < packets; ++i) {
    if (whole.lost(first + i)) mask.set_lost(i);
  }
  return mask;
}

std::vector<std::unique_ptr<LossProcess>> processes() {
  std::vector<std::unique_ptr<LossProcess>> all;
  all.push_back(std::make_unique<NoLoss>());
  for (const double p : {0.0, 0.01, 0.5, 1.0}) all.push_back(std::make_unique<Bernoulli>(p));
  for (const GilbertElliottRates& rates :
       {GilbertElliottRates{0.01, 0.25, 0, 1}, GilbertElliottRates{0.005, 0.3, 0, 0.65},
        GilbertElliottRates{0.02, 0.2, 0.005, 0.6}, GilbertElliottRates{0.6, 0.7, 0.1, 0.8},
        GilbertElliottRates{0.9, 0.95, 0, 1}, GilbertElliottRates{0.0005, 0.001, 0, 1},
        GilbertElliottRates{0.999, 0.998, 0.2, 0.9}, GilbertElliottRates{1, 0.25, 0.1, 1},
        GilbertElliottRates{0, 0.25, 0.1, 1}, GilbertElliottRates{0.1, 0, 0.1, 0.5},
        GilbertElliottRates{0.5, 0.5, 0, 1}, GilbertElliottRates{0.1, 0.1, 1, 0},
        GilbertElliottRates{0.1, 0.1, 0.3, 1}}) {
    all.push_back(std::make_unique<GilbertElliott>(rates));
  }
  return all;
}

TEST(LossMask, EqualsOnePacketAtATime) {
  for (const auto& process : processes()) {
    SCOPED_TRACE(process->describe());
    GilbertElliottRates rates{process->loss_rate(), 1 - process->loss_rate(), 0, 1};
    const auto* chain = dynamic_cast<const GilbertElliott*>(process.get());
    if (chain != nullptr) rates = chain->rates();
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{0x123456789abcdef0U}}) {
      for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{12345678901}, ~std::uint64_t{0} - 699}) {
        const PacketMask mask = drawn(*process, seed, kLink, first, 1500);
        for (std::uint64_t i = 0; i < 1500; ++i) {
          const bool want = chain != nullptr ? naive_lost(rates, seed, kLink, first + i)
                                             : naive_below(naive_draw(seed, kLink, Purpose::kLossTransition, first + i),
                                                           process->loss_rate());
          ASSERT_EQ(mask.lost(i), want) << "packet " << first << " + " << i << ", seed " << seed;
        }
      }
    }
  }
}

TEST(LossMask, AnyPieceOfARangeHasTheSameFates) {
  // Long enough for several tiles, and begun and ended at all places in a word.
  constexpr std::uint64_t kPackets = 20000;
  for (const auto& process : processes()) {
    SCOPED_TRACE(process->describe());
    const PacketMask whole = drawn(*process, 3, kLink, 1000, kPackets);
    for (std::uint64_t first = 0; first < 200; first += 7) {
      for (const std::uint64_t packets : {0, 1, 2, 63, 64, 65, 127, 128, 129, 4096, 9000}) {
        ASSERT_EQ(drawn(*process, 3, kLink, 1000 + first, packets), piece(whole, first, packets))
            << first << " " << packets;
      }
    }
  }
}

TEST(LossMask, ShortMaskIsAPrefixOfALongOne) {
  for (const auto& process : processes()) {
    const PacketMask whole = drawn(*process, 4, kLink, 77, 5000);
    for (std::uint64_t packets = 0; packets < 5000; packets += 331) {
      ASSERT_EQ(drawn(*process, 4, kLink, 77, packets), piece(whole, 0, packets)) << process->describe();
    }
  }
}

TEST(LossMask, ThreadsAndQueryOrderDoNotMatter) {
  constexpr std::uint64_t kPiece = 777;
  constexpr std::uint64_t kPieces = 64;
  for (const auto& process : processes()) {
    const PacketMask whole = drawn(*process, 5, kLink, 0, kPiece * kPieces);
    std::vector<PacketMask> pieces(kPieces);
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t k = kPieces; k-- > 0;) {
          if (k % 4 != t) continue;
          pieces[k].resize(kPiece);
          process->draw(5, kLink, k * kPiece, pieces[k]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::uint64_t k = 0; k < kPieces; ++k) {
      ASSERT_EQ(pieces[k], piece(whole, k * kPiece, kPiece)) << process->describe();
    }
  }
}

TEST(LossMask, IndexWrapsAroundWithoutASeam) {
  for (const auto& process : processes()) {
    const std::uint64_t first = ~std::uint64_t{0} - 99;  // 100 packets before packet 0
    const PacketMask over = drawn(*process, 6, kLink, first, 300);
    EXPECT_EQ(piece(over, 0, 100), drawn(*process, 6, kLink, first, 100)) << process->describe();
    EXPECT_EQ(piece(over, 100, 200), drawn(*process, 6, kLink, 0, 200)) << process->describe();
  }
}

TEST(LossMask, CertaintiesAreExact) {
  const auto count = [](const LossProcess& process) { return drawn(process, 8, kLink, 5, 1000001).lost_count(); };
  EXPECT_EQ(count(NoLoss()), 0U);
  EXPECT_EQ(count(Bernoulli(0)), 0U);
  EXPECT_EQ(count(Bernoulli(1)), 1000001U);
  EXPECT_EQ(count(GilbertElliott({0, 0.5, 0, 1})), 0U);
  EXPECT_EQ(count(GilbertElliott({0.5, 0, 0, 1})), 1000001U);
  EXPECT_EQ(count(GilbertElliott({0.3, 0.3, 0, 0})), 0U);
  EXPECT_EQ(count(GilbertElliott({0.3, 0.3, 1, 1})), 1000001U);
}

TEST(LossMask, SumOfRatesOneIsIndependentLoss) {
  // If p + r = 1, the chain has no memory: the state is bad exactly if the draw is below p, as for Bernoulli.
  for (const double p : {0.5, 0.25, 0.125}) {
    EXPECT_EQ(drawn(GilbertElliott({p, 1 - p, 0, 1}), 9, kLink, 0, 100000), drawn(Bernoulli(p), 9, kLink, 0, 100000));
  }
}

bool is_subset(const PacketMask& small, const PacketMask& large) {
  for (std::size_t w = 0; w < small.words().size(); ++w) {
    if ((small.words()[w] & ~large.words()[w]) != 0) return false;
  }
  return true;
}

TEST(LossMask, LossesAtALowerRateAreASubset) {
  const auto expect_nested = [](const std::vector<std::unique_ptr<LossProcess>>& rising) {
    for (std::size_t i = 0; i + 1 < rising.size(); ++i) {
      const PacketMask fewer = drawn(*rising[i], 10, kLink, 0, 200000);
      const PacketMask more = drawn(*rising[i + 1], 10, kLink, 0, 200000);
      EXPECT_TRUE(is_subset(fewer, more)) << rising[i]->describe() << " " << rising[i + 1]->describe();
      EXPECT_LT(fewer.lost_count(), more.lost_count());
    }
  };
  std::vector<std::unique_ptr<LossProcess>> rising;
  for (const double p : {0.0, 1e-4, 0.01, 0.05, 0.4, 0.999, 1.0}) rising.push_back(std::make_unique<Bernoulli>(p));
  expect_nested(rising);
  rising.clear();
  for (const double p : {0.0, 0.001, 0.01, 0.1, 0.7, 0.9}) {  // r is 0.2; the last p swaps the states
    rising.push_back(std::make_unique<GilbertElliott>(GilbertElliottRates{p, 0.2, 0.01, 0.9}));
  }
  expect_nested(rising);
  rising.clear();
  for (const double loss : {0.01, 0.05, 0.2, 0.4}) {
    rising.push_back(std::make_unique<GilbertElliott>(rates_of_burst(loss, 8)));
  }
  expect_nested(rising);
}

TEST(LossMask, MemoryOfAMaskIsUsedAgain) {
  PacketMask mask(100000);
  const std::uint64_t* const words = mask.words().data();
  mask.set_lost(5);
  mask.resize(100);
  EXPECT_FALSE(mask.any_lost());
  mask.resize(100000);
  EXPECT_EQ(mask.words().data(), words);
  EXPECT_EQ(mask.lost_count(), 0U);
  mask.set_lost(99999);
  EXPECT_TRUE(mask.any_lost());
  EXPECT_TRUE(mask.lost(99999));
  EXPECT_EQ(mask.lost_count(), 1U);
}

}  // namespace
}  // namespace droptest::sim::loss_mask_test
