// SPDX-License-Identifier: Apache-2.0
// Recovery along a link: which packets stay missing, how often, and the packets sent for it.
#include <gtest/gtest.h>
#include <math.h>

#include <bit>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/no_loss.h"
#include "sim/recovery/parity.h"
#include "sim/recovery/recovery_registry.h"
#include "sim/recovery/retransmission.h"

namespace droptest::sim::recovery_test {
namespace {

constexpr std::uint64_t kSeed = 20260301;
constexpr Link kLink{TrafficClass::kTpForward, Half::kReduce, 3, 5};

const LinkRecovery::DrawAgain kNoDraws = [](const Attempt&, std::uint64_t, PacketMask&) {
  FAIL() << "nothing is sent again";
};

LinkRecovery::DrawAgain draws_of(const LossProcess& process, std::uint64_t first) {
  return draws_by_attempt(process, kSeed, kLink, first);
}

constexpr std::uint64_t kWaits = 123'456'789'000'000;  // slots

/// Records the last packet for which a fate was requested.
class FurthestPlace final : public LossProcess {
 public:
  explicit FurthestPlace(std::uint64_t& furthest) : furthest_(furthest) {}
  void draw(std::uint64_t /*seed*/, const Link& /*link*/, std::uint64_t first_packet, PacketMask& lost) const override {
    furthest_ = first_packet + lost.size() - 1;
  }
  double loss_rate() const override { return 0; }
  double mean_burst_packets() const override { return 0; }
  double mean_gap_packets() const override { return 0; }
  double burst_at_least(std::uint64_t /*packets*/) const override { return 0; }
  double lost_count_variance(std::uint64_t /*n*/) const override { return 0; }
  std::string describe() const override { return "furthest"; }

 private:
  std::uint64_t& furthest_;
};

double binomial(int n, int k) {
  return std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0));
}

/// p P(Bin(n - 1, p) >= m): a data packet is lost, and at least m of the block's others.
double bernoulli_residual(double p, int k, int m) {
  double tail = 0;
  for (int j = m; j <= k + m - 1; ++j) tail += binomial(k + m - 1, j) * std::pow(p, j) * std::pow(1 - p, k + m - 1 - j);
  return p * tail;
}

TEST(LinkRecovery, RepetitionsStayBelowThePlacesOfTheNextMessage) {
  std::uint64_t furthest = 0;
  const FurthestPlace process(furthest);
  MessagePosition place;
  place.first_packet = place.origin = std::uint64_t{7} << 32U;
  const LinkRecovery::DrawAgain draw_again = draws_by_slot(process, kSeed, kLink, place);
  PacketMask lost(64);
  for (const std::uint64_t slot : {std::uint64_t{100}, std::uint64_t{1} << 31U, std::uint64_t{0xffffffff}, kWaits}) {
    draw_again({1, slot}, 5, lost);
    EXPECT_GE(furthest, place.first_packet) << slot;
    EXPECT_LT(furthest, std::uint64_t{8} << 32U) << slot;
  }
  draw_again({1, 100}, 5, lost);
  EXPECT_EQ(furthest, place.first_packet + 105 + 63);
}

TEST(Parity, EveryPacketOfAMessageHasOnePlace) {
  for (const std::uint64_t depth : {1U, 2U, 3U, 7U}) {
    const Parity parity({3, 2, depth});
    for (std::uint64_t n = 1; n <= 40; ++n) {
      std::set<std::uint64_t> places;
      for (std::uint64_t i = 0; i < n; ++i) places.insert(parity.position(i, n));
      for (std::uint64_t b = 0; b < parity.blocks(n); ++b) {
        for (std::uint64_t j = 0; j < 2; ++j) places.insert(parity.parity_position(b, j, n));
      }
      ASSERT_EQ(places.size(), parity.first_packets(n)) << "depth " << depth << ", " << n << " packets";
      EXPECT_EQ(*places.rbegin() + 1, parity.first_packets(n));
      EXPECT_EQ(parity.first_packets(n), n + (n + 2) / 3 * 2);
    }
  }
}

TEST(Parity, DepthPutsNeighboursOfABlockApart) {
  const Parity parity({4, 1, 3});
  for (std::uint64_t i = 0; i + 1 < 24; ++i) {
    if (i / 4 == (i + 1) / 4) {
      EXPECT_EQ(parity.position(i + 1, 24), parity.position(i, 24) + 3);
    }
  }
  EXPECT_EQ(parity.position(4, 24), 1U) << "the second block's first packet is the second on the link";
  EXPECT_EQ(parity.parity_position(0, 0, 24), 12U);
}

TEST(Parity, RepairsUpToItsParityAndNothingMore) {
  // Every pattern of losses of a message with a shorter last block: blocks {0, 1, 2} and {3, 4}, m parity packets each.
  const std::uint64_t n = 5;
  for (const unsigned m : {1U, 2U, 3U}) {
    const Parity parity({3, m, 1});
    ASSERT_EQ(parity.first_packets(n), n + 2 * m);
    const unsigned first = (1U << (3 + m)) - 1;  // packets of the first block
    for (unsigned pattern = 0; pattern < 1U << (n + 2 * m); ++pattern) {
      SCOPED_TRACE(std::to_string(m) + " parity packets, pattern " + std::to_string(pattern));
      PacketMask lost(n + 2 * m);
      for (unsigned i = 0; i < n + 2 * m; ++i) {
        if ((pattern >> i & 1) != 0) lost.set_lost(i);
      }
      PacketMask missing(n);
      const Repair repair = parity.recover(lost, kNoDraws, {}, missing);
      const bool first_fails = std::popcount(pattern & first) > static_cast<int>(m);
      const bool second_fails = std::popcount(pattern & ~first) > static_cast<int>(m);
      for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(missing.lost(i), first_fails && lost.lost(i));
      for (std::uint64_t i = 3; i < n; ++i) EXPECT_EQ(missing.lost(i), second_fails && lost.lost(i + m));
      EXPECT_EQ(repair.resent_packets, 0U);
      const unsigned data = 7U | 3U << (3 + m);
      EXPECT_EQ(repair.lost_data_packets, static_cast<std::uint64_t>(std::popcount(pattern & data)));
    }
  }
}

TEST(Parity, ResidualRateOfBernoulliIsTheBinomialTail) {
  for (const double p : {0.001, 0.05, 0.3, 0.9, 1.0}) {
    for (const auto& [k, m] : std::vector<std::pair<int, int>>{{1, 1}, {4, 1}, {8, 2}, {10, 4}, {100, 20}}) {
      const Parity parity({static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(m), 1});
      const double expected = p < 1 ? bernoulli_residual(p, k, m) : 1;
      EXPECT_NEAR(*parity.residual_rate(Bernoulli(p)), expected, 1e-12 + 1e-9 * expected) << p << " " << k << " " << m;
    }
  }
  // (4, 1) at 10 %: 0.1 (1 - 0.9^4), by hand.
  EXPECT_NEAR(*Parity({4, 1, 1}).residual_rate(Bernoulli(0.1)), 0.03439, 1e-15);
  EXPECT_EQ(*Parity({4, 1, 1}).residual_rate(NoLoss()), 0);
}

bool is_set(unsigned bits, unsigned i) { return ((bits >> i) & 1U) != 0; }

/// Gilbert-Elliott by adding up every path of states and losses of a block of (2, 1).
double enumerated_residual(const GilbertElliottRates& rates, std::uint64_t gap) {
  const double share = rates.p_good_to_bad / (rates.p_good_to_bad + rates.p_bad_to_good);
  const double kept = std::pow(1 - rates.p_good_to_bad - rates.p_bad_to_good, static_cast<double>(gap));
  double missing = 0;
  for (unsigned states = 0; states < 8; ++states) {
    for (unsigned losses = 0; losses < 8; ++losses) {
      double probability = 1;
      for (unsigned i = 0; i < 3; ++i) {
        const bool bad = is_set(states, i);
        const double stationary = bad ? share : 1 - share;
        if (i == 0) {
          probability *= stationary;
        } else {
          probability *= (bad == is_set(states, i - 1) ? kept : 0.0) + stationary * (1 - kept);
        }
        const double loss = bad ? rates.loss_bad : rates.loss_good;
        probability *= is_set(losses, i) ? loss : 1 - loss;
      }
      if (__builtin_popcount(losses) > 1) missing += probability * __builtin_popcount(losses & 3U);
    }
  }
  return missing / 2;
}

TEST(Parity, ResidualRateOfBurstsIsTheSumOverTheChain) {
  for (const GilbertElliottRates& rates :
       {GilbertElliottRates{0.01, 0.25, 0, 1}, GilbertElliottRates{0.05, 0.3, 0.01, 0.65},
        GilbertElliottRates{0.6, 0.7, 0.1, 0.8}}) {
    EXPECT_NEAR(*Parity({2, 1, 1}).residual_rate(GilbertElliott(rates)), enumerated_residual(rates, 1), 1e-14);
    EXPECT_NEAR(*Parity({2, 1, 5}).residual_rate(GilbertElliott(rates)), enumerated_residual(rates, 5), 1e-14);
  }
  // Turns help against bursts, up to the residual rate of independent losses.
  const GilbertElliott bursts(rates_of_burst(0.05, 8));
  const double apart = *Parity({8, 2, 64}).residual_rate(bursts);
  EXPECT_LT(apart, 0.2 * *Parity({8, 2, 1}).residual_rate(bursts));
  EXPECT_NEAR(apart, bernoulli_residual(0.05, 8, 2), 1e-4);
}

/// Mean residual over independent messages against theory, with the spread over messages as its error.
void expect_residual(const LinkRecovery& recovery, const LossProcess& process, std::uint64_t n) {
  const int messages = 4000;
  double sum = 0;
  double squares = 0;
  for (int message = 0; message < messages; ++message) {
    const std::uint64_t first = static_cast<std::uint64_t>(message) << 32;
    PacketMask lost(recovery.first_packets(n));
    process.draw(kSeed, kLink, first, lost);
    PacketMask missing(n);
    recovery.recover(lost, draws_of(process, first), {}, missing);
    const double rate = static_cast<double>(missing.lost_count()) / static_cast<double>(n);
    sum += rate;
    squares += rate * rate;
  }
  const double mean = sum / messages;
  const double error = std::sqrt((squares / messages - mean * mean) / (messages - 1));
  ASSERT_GT(error, 0) << recovery.describe();
  const double expected = *recovery.residual_rate(process, n);
  EXPECT_LT(std::abs(mean - expected) / error, 4)
      << recovery.describe() << " " << process.describe() << ": " << mean << ", want " << expected;
}

TEST(LinkRecovery, ResidualRatesAgreeWithTheory) {
  const Bernoulli independent(0.1);
  const GilbertElliott bursts(rates_of_burst(0.1, 4));
  for (const LossProcess* process :
       {static_cast<const LossProcess*>(&independent), static_cast<const LossProcess*>(&bursts)}) {
    expect_residual(Parity({4, 1, 1}), *process, 80);
    expect_residual(Parity({8, 2, 1}), *process, 83);
    expect_residual(Parity({5, 2, 3}), *process, 52);
    expect_residual(SelectiveRepeat(1), *process, 64);
    expect_residual(SelectiveRepeat(2), *process, 100);
  }
}

TEST(SelectiveRepeat, RoundsAreTheMaximumOfGeometrics) {
  const Bernoulli process(0.1);
  const SelectiveRepeat recovery(std::nullopt);
  const int messages = 4000;
  double rounds = 0;
  double squares = 0;
  double sent = 0;
  for (int message = 0; message < messages; ++message) {
    const std::uint64_t first = static_cast<std::uint64_t>(message) << 32;
    PacketMask lost(100);
    process.draw(kSeed, kLink, first, lost);
    PacketMask missing(100);
    const Repair repair = recovery.recover(lost, draws_of(process, first), {}, missing);
    EXPECT_FALSE(missing.any_lost());
    const auto r = static_cast<double>(repair.rounds);
    rounds += r / messages;
    squares += r * r / messages;
    sent += 1 + static_cast<double>(repair.resent_packets) / 100;
  }
  // E[R] = sum over k of 1 - (1 - p^k)^m.
  EXPECT_LT(std::abs(rounds - 2.74021022) / std::sqrt((squares - rounds * rounds) / messages), 4);
  // Transmissions per packet are geometric: mean 1 / (1 - p), variance p / (1 - p)^2.
  EXPECT_LT(std::abs(sent / messages - 1 / 0.9) / std::sqrt(0.1 / 0.81 / (100.0 * messages)), 4);
}

TEST(SelectiveRepeat, SendsOnlyWhatABlockStillNeeds) {
  // Blocks {0, 1, 2} with two losses and {3, 4, 5} with one, which its parity repairs.
  const SelectiveRepeat recovery(2, Parity({3, 1, 1}));
  PacketMask lost(8);
  for (const std::uint64_t i : {0U, 2U, 5U}) lost.set_lost(i);
  int rounds = 0;
  const auto again = [&rounds](const Attempt& attempt, std::uint64_t first_packet, PacketMask& fates) {
    ++rounds;
    EXPECT_EQ(attempt.number, 1U);
    fates.set_lost(2 - first_packet);  // packet 0 arrives, 2 does not: the parity packet gives it back
  };
  PacketMask missing(6);
  const Repair repair = recovery.recover(lost, again, {}, missing);
  EXPECT_EQ(rounds, 1);
  EXPECT_EQ(repair.resent_packets, 2U);
  EXPECT_EQ(repair.lost_data_packets, 3U);
  EXPECT_FALSE(missing.any_lost());
}

TEST(GoBackN, TakesTheSlotsOfItsClosedForm) {
  EXPECT_NEAR(2000 + GoBackN(std::nullopt, 50).expected_extra_seconds(0.01, 2000, {1, 0}), 3010.10, 0.005);
  const Bernoulli process(0.01);
  const GoBackN recovery(std::nullopt, 100);
  const int messages = 1500;
  double slots = 0;
  double squares = 0;
  for (int message = 0; message < messages; ++message) {
    const std::uint64_t first = static_cast<std::uint64_t>(message) << 32;
    PacketMask lost(2000);
    process.draw(kSeed, kLink, first, lost);
    PacketMask missing(2000);
    const Repair repair = recovery.recover(lost, draws_of(process, first), {}, missing);
    EXPECT_FALSE(missing.any_lost());
    const double s = 2000 + 100 * static_cast<double>(repair.rounds - 1);
    slots += s / messages;
    squares += s * s / messages;
    EXPECT_LE(repair.resent_packets, 100 * (repair.rounds - 1));
  }
  EXPECT_LT(std::abs(slots - 4020.20) / std::sqrt((squares - slots * slots) / messages), 4);
}

// std::lgamma would write it, in every thread that plans a run.
TEST(GoBackN, ExpectationsWriteNoGlobalVariable) {
  ::signgam = 42;
  EXPECT_GT(GoBackN(3U, 50).expected_missing(0.1, 100), 0);
  EXPECT_EQ(::signgam, 42);
}

TEST(GoBackN, DropsWhatIsBehindALossAndSendsTheWindowAgain) {
  PacketMask lost(10);
  lost.set_lost(4);
  const auto arrive = [](const Attempt&, std::uint64_t, PacketMask&) {};
  PacketMask missing(10);
  const Repair repaired = GoBackN(1, 3).recover(lost, arrive, {}, missing);
  EXPECT_FALSE(missing.any_lost());
  EXPECT_EQ(repaired.resent_packets, 3U) << "4, and 5 and 6 that were on their way";
  EXPECT_EQ(repaired.rounds, 2U);
  // Packet 6 is lost again, and the budget is used up: packet 6 and all later ones are missing.
  const auto lose_six = [](const Attempt&, std::uint64_t first_packet, PacketMask& fates) {
    fates.set_lost(6 - first_packet);
  };
  const Repair spent = GoBackN(1, 3).recover(lost, lose_six, {}, missing);
  EXPECT_EQ(spent.resent_packets, 3U);
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(missing.lost(i), i >= 6) << i;
}

TEST(LinkRecovery, WhatIsMissingIsMonotoneInTheLossRate) {
  std::vector<std::unique_ptr<LinkRecovery>> recoveries;
  recoveries.push_back(std::make_unique<Parity>(ParityCode{4, 2, 2}));
  recoveries.push_back(std::make_unique<SelectiveRepeat>(1));
  recoveries.push_back(std::make_unique<SelectiveRepeat>(1, Parity({4, 1, 1})));
  recoveries.push_back(std::make_unique<GoBackN>(3, 8));
  recoveries.push_back(std::make_unique<GoBack0>(3));
  for (const auto& recovery : recoveries) {
    std::uint64_t total = 0;
    for (std::uint64_t message = 0; message < 200; ++message) {
      PacketMask at_less(60);
      for (const double p : {0.1, 0.2, 0.4}) {
        const Bernoulli process(p);
        PacketMask lost(recovery->first_packets(60));
        process.draw(kSeed, kLink, message << 32, lost);
        PacketMask missing(60);
        recovery->recover(lost, draws_of(process, message << 32), {}, missing);
        for (std::uint64_t i = 0; i < 60; ++i) ASSERT_LE(at_less.lost(i), missing.lost(i)) << recovery->describe();
        total += missing.lost_count();
        at_less = missing;
      }
    }
    EXPECT_GT(total, 0U) << recovery->describe();
  }
}

TEST(LinkRecovery, RefusesWhatHasNoMeaning) {
  EXPECT_THROW(Parity({0, 1, 1}), ConfigError);
  EXPECT_THROW(Parity({4, 0, 1}), ConfigError);
  EXPECT_THROW(Parity({200, 56, 1}), ConfigError);
  EXPECT_THROW(Parity({4, 1, 0}), ConfigError);
  EXPECT_THROW(GoBackN(1, 0), ConfigError);
  using Members = Parameters::Members;
  const auto parameters = [](Members members) { return Parameters(std::move(members), "s.json: /network/recovery"); };
  const Parameters code(Members{{"data", {std::int64_t{4}, "d"}}, {"parity", {std::int64_t{2}, "p"}}}, "code");
  const Parameters back(Members{{"protocol", {std::string("go_back_n"), "x"}}}, "s.json: /network/recovery/retransmit");
  EXPECT_EQ(make_link_recovery(parameters({})), nullptr);
  EXPECT_EQ(make_link_recovery(parameters({{"parity", code}}))->describe(), "parity(data=4, parity=2)");
  EXPECT_EQ(make_link_recovery(parameters({{"retransmit", back}}))->describe(),
            "go_back_n(window_packets=a round trip, rounds=unlimited)");
  try {
    make_link_recovery(parameters({{"parity", code}, {"retransmit", back}}));
    FAIL() << "go-back-N has no blocks";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what())
                  .find("s.json: /network/recovery/retransmit/protocol: got \"go_back_n\", want "
                        "selective_repeat with parity"),
              0U)
        << error.what();
  }
}

}  // namespace
}  // namespace droptest::sim::recovery_test
