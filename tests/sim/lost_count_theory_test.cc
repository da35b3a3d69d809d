// SPDX-License-Identifier: Apache-2.0
// Means and variances of lost packets against sums over all pairs of packets, and against drawn fates.
#include "sim/loss/lost_count_theory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "sim/loss/bernoulli.h"
#include "sim/loss/four_state.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/pattern.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "sim/loss/trace.h"
#include "tests/sim/z_values.h"

namespace droptest::sim::lost_count_theory_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kGather, 0, 1};

/// A chain of four states or fewer, written down without the code under test.
struct Chain {
  std::vector<std::vector<double>> moves;
  std::vector<double> shares;
  std::vector<double> losses;

  double loss_rate() const {
    double rate = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) rate += shares[i] * losses[i];
    return rate;
  }
  /// The covariances of the fates of two packets at the distances 0, 1, ..., computed step by step along the chain.
  std::vector<double> covariances(std::size_t distances) const {
    const double rate = loss_rate();
    std::vector<double> all = {rate * (1 - rate)};
    std::vector<double> state(shares.size());
    for (std::size_t i = 0; i < state.size(); ++i) state[i] = shares[i] * losses[i];
    while (all.size() < distances) {
      std::vector<double> next(state.size());
      for (std::size_t i = 0; i < state.size(); ++i) {
        for (std::size_t j = 0; j < state.size(); ++j) next[j] += state[i] * moves[i][j];
      }
      state = next;
      double both = 0;
      for (std::size_t j = 0; j < state.size(); ++j) both += state[j] * losses[j];
      all.push_back(both - rate * rate);
    }
    return all;
  }
};

Chain two_states(const GilbertElliottRates& c) {
  const double s = c.p_good_to_bad + c.p_bad_to_good;
  return {{{1 - c.p_good_to_bad, c.p_good_to_bad}, {c.p_bad_to_good, 1 - c.p_bad_to_good}},
          {c.p_bad_to_good / s, c.p_good_to_bad / s},
          {c.loss_good, c.loss_bad}};
}

Chain four_states(const FourStateRates& c) {
  const double lost = c.p13 / c.p31;
  const double in_burst = lost * c.p32 / c.p23;
  const double all = 1 + c.p14 + lost + in_burst;
  return {{{1 - c.p13 - c.p14, 0, c.p13, c.p14},
           {0, 1 - c.p23, c.p23, 0},
           {c.p31, c.p32, 1 - c.p31 - c.p32, 0},
           {1, 0, 0, 0}},
          {1 / all, in_burst / all, lost / all, c.p14 / all},
          {0, 0, 1, 1}};
}

struct Known {
  std::unique_ptr<LossProcess> process;
  Chain chain;
};
std::vector<Known> known_processes() {
  std::vector<Known> all;
  for (const GilbertElliottRates& rates : {rates_of_burst(0.05, 50), GilbertElliottRates{0.02, 0.1, 0.01, 0.6},
                                           GilbertElliottRates{0.9, 0.8, 0, 1}, GilbertElliottRates{0.3, 0.7, 0, 1}}) {
    all.push_back({std::make_unique<GilbertElliott>(rates), two_states(rates)});
  }
  for (const FourStateRates& rates :
       {FourStateRates{0.01, 0.3, 0.2, 0.6, 0.002}, FourStateRates{0.3, 0.6, 0.3, 1, 0.6},
        FourStateRates{0.001, 0.02, 0.01, 0.005, 0.01}, FourStateRates{0.4, 0.9, 0.05, 0.5, 0.3}}) {
    all.push_back({std::make_unique<FourState>(rates), four_states(rates)});
  }
  return all;
}

struct Sent {
  std::uint64_t first = 0;
  std::uint64_t packets = 0;
};

double sum_over_pairs(const Chain& chain, const std::vector<Sent>& messages) {
  std::vector<std::uint64_t> packets;
  std::uint64_t last = 0;
  for (const Sent& message : messages) {
    for (std::uint64_t i = 0; i < message.packets; ++i) packets.push_back(message.first + i);
    last = std::max(last, message.first + message.packets);
  }
  const std::vector<double> covariances = chain.covariances(last + 1);
  double variance = 0;
  for (const std::uint64_t a : packets) {
    for (const std::uint64_t b : packets) variance += covariances[a < b ? b - a : a - b];
  }
  return variance;
}

MessagePosition at(std::uint64_t first) { return {first, 0, 0, {}}; }

TEST(LostCountTheory, HoldsTheCovarianceOfAllPairsOfPacketsInAnyOrder) {
  std::mt19937 random(5);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same messages each time
  for (const Known& known : known_processes()) {
    SCOPED_TRACE(known.process->describe());
    for (const std::uint64_t widest : {1U, 6U, 60U}) {
      std::vector<Sent> messages;
      std::uint64_t next = 3;
      for (int i = 0; i < 40; ++i) {
        const std::uint64_t packets = 1 + random() % 9;
        messages.push_back({next, packets});
        next += packets + random() % widest;
      }
      const double expected = sum_over_pairs(known.chain, messages);
      for (int order = 0; order < 3; ++order) {
        LostCountTheory theory;
        for (const Sent& message : messages) {
          theory.add(*known.process, 0, 1, kLink, at(message.first), message.packets,
                     order == 0 ? MessageOrder::kByDraw : MessageOrder::kAny);
        }
        EXPECT_NEAR(theory.total().variance, expected, 1e-9 * expected) << "order " << order << ", gaps " << widest;
        std::ranges::shuffle(messages, random);
      }
    }
  }
}

TEST(LostCountTheory, MessagesWithGapsAreExactForEver) {
  for (const Known& known : known_processes()) {
    for (const MessageOrder order : {MessageOrder::kByDraw, MessageOrder::kAny}) {
      std::vector<Sent> messages;
      LostCountTheory theory;
      for (std::uint64_t i = 0; i < 600; ++i) {
        messages.push_back({7 * i, 2});
        theory.add(*known.process, 0, 1, kLink, at(7 * i), 2, order);
      }
      const double expected = sum_over_pairs(known.chain, messages);
      EXPECT_NEAR(theory.total().variance, expected, 1e-8 * expected) << known.process->describe();
    }
  }
}

TEST(LostCountTheory, FixedFatesAreCountedExactlyInAnyOrder) {
  PacketMask recorded(37);
  for (const std::uint64_t packet : {2U, 3U, 17U, 30U}) recorded.set_lost(packet);
  const Pattern pattern(3, 7, 2);
  const Trace trace(recorded, TraceStart::kRandom, "t");
  for (const LossProcess* process :
       {static_cast<const LossProcess*>(&pattern), static_cast<const LossProcess*>(&trace)}) {
    LostCountTheory theory;
    double lost = 0;
    for (const std::uint64_t first : {90U, 4U, 44U, 1000U, 8U}) {
      PacketMask mask(5);
      process->draw_message(1, kLink, at(first), mask);
      lost += static_cast<double>(mask.lost_count());
      theory.add(*process, 0, 1, kLink, at(first), 5, MessageOrder::kAny);
    }
    EXPECT_EQ(theory.total().mean, lost);
    EXPECT_EQ(theory.total().variance, 0);
  }
}

/// z over seeds of messages of four packets with these processes by turns, which follow on one another.
std::vector<double> z_of_turns(const std::vector<const LossProcess*>& turns, std::uint64_t packets_of_turn) {
  std::vector<double> all;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    LostCountTheory theory;
    double lost = 0;
    PacketMask mask(4);
    for (std::uint64_t first = 0; first < 1200; first += 4) {
      const std::uint64_t step = first / packets_of_turn;
      const LossProcess* process = turns[step % turns.size()];
      if (process == nullptr) continue;
      process->draw(seed, kLink, first, mask);
      lost += static_cast<double>(mask.lost_count());
      theory.add(*process, step, seed, kLink, at(first), 4);
    }
    all.push_back((lost - theory.total().mean) / std::sqrt(theory.total().variance));
  }
  return all;
}

TEST(LostCountTheory, ProcessesThatTakeTurnsShareTheDrawsOfTheirLink) {
  const GilbertElliott bursts(rates_of_burst(0.05, 50));
  const GilbertElliott same(rates_of_burst(0.05, 50));
  const GilbertElliott more(rates_of_burst(0.2, 20));
  const GilbertElliott alternating(GilbertElliottRates{0.9, 0.8, 0, 1});
  const FourState wireless(FourStateRates{0.01, 0.05, 0.02, 0.1, 0.01});
  const Bernoulli some(0.3);
  const Bernoulli everything(1);
  const std::vector<std::vector<const LossProcess*>> all = {{&bursts, nullptr},
                                                            {&bursts, &everything, &same, &everything},
                                                            {&bursts, &more},
                                                            {&more, &some},
                                                            {&bursts, &wireless, &some},
                                                            {&wireless, &more},
                                                            {&bursts, &alternating}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const std::uint64_t packets_of_turn : {4U, 20U}) {
      SCOPED_TRACE(std::to_string(i) + ", " + std::to_string(packets_of_turn) + " packets");
      expect_standard(z_of_turns(all[i], packets_of_turn));
    }
  }
}

}  // namespace
}  // namespace droptest::sim::lost_count_theory_test
