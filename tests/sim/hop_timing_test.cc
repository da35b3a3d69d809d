// SPDX-License-Identifier: Apache-2.0
#include "sim/time/hop_timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/recovery/retransmission.h"
#include "sim/time/link_cost.h"
#include "sim/time/straggler.h"
#include "sim/time/timing_theory.h"
#include "tests/sim/timing_formulas.h"
#include "tests/sim/vector_file.h"

namespace droptest::sim::hop_timing_test {
namespace {

constexpr LinkCost kLink{5e-6, 1e9};
constexpr double kElementBytes = 4;

using TimedRound = std::vector<TimedHop>;
using TimedRounds = std::vector<TimedRound>;
using CostOfHop = std::function<HopCost(const TimedHop& hop)>;

struct RoundsOutcome {
  std::vector<double> finish_seconds;  // finish time of each rank
  std::vector<std::uint64_t> in_time;  // packets in time of each hop, in order
};

RoundsOutcome play_rounds(const TimedRounds& rounds, const std::vector<double>& start, const CostOfHop& cost,
                          std::optional<double> deadline = std::nullopt) {
  RoundClock clock(start, deadline);
  RoundsOutcome outcome{start, {}};
  for (const TimedRound& round : rounds) {
    clock.begin_round();
    for (const TimedHop& hop : round) outcome.in_time.push_back(clock.play(hop, cost(hop)));
    clock.end_round();
  }
  clock.finish(outcome.finish_seconds);
  return outcome;
}

// N - 1 rounds to the right-hand neighbour for each half.
TimedRounds ring(int ranks, std::uint64_t elements) {
  TimedRounds schedule;
  for (const Half half : {Half::kReduce, Half::kGather}) {
    for (int round = 1; round < ranks; ++round) {
      TimedRound& hops = schedule.emplace_back();
      for (int r = 0; r < ranks; ++r) hops.push_back({r, (r + 1) % ranks, elements / ranks, half});
    }
  }
  return schedule;
}

TimedRounds halving_doubling(int ranks, std::uint64_t elements) {
  TimedRounds schedule;
  const auto round = [&](int distance, std::uint64_t part, Half half) {
    TimedRound& hops = schedule.emplace_back();
    for (int r = 0; r < ranks; ++r) hops.push_back({r, r ^ distance, part, half});
  };
  std::uint64_t part = elements;
  for (int distance = ranks / 2; distance > 0; distance /= 2) round(distance, part /= 2, Half::kReduce);
  for (int distance = 1; distance < ranks; distance *= 2, part *= 2) round(distance, part, Half::kGather);
  return schedule;
}

TimedRounds direct(int ranks, std::uint64_t elements) {
  TimedRounds schedule;
  for (const Half half : {Half::kReduce, Half::kGather}) {
    TimedRound& hops = schedule.emplace_back();
    for (int distance = 1; distance < ranks; ++distance) {
      for (int r = 0; r < ranks; ++r) hops.push_back({r, (r + distance) % ranks, elements / ranks, half});
    }
  }
  return schedule;
}

CostOfHop cost_over(const LinkCost& link, std::uint64_t packet_elements = 352) {
  return [link, packet_elements](const TimedHop& hop) -> HopCost {
    return {link.latency_seconds, link.transfer_seconds(static_cast<double>(hop.elements) * kElementBytes), 0,
            (hop.elements + packet_elements - 1) / packet_elements};
  };
}

double latest(const RoundsOutcome& outcome) {
  return *std::max_element(outcome.finish_seconds.begin(), outcome.finish_seconds.end());
}

TEST(HopTiming, RanksThatStartTogetherFinishAsTheClosedFormsSay) {
  constexpr std::uint64_t kElements = 1 << 20;
  for (const int ranks : {2, 4, 8, 16}) {
    const std::vector<double> start(static_cast<std::size_t>(ranks), 0.25);
    const double bytes = kElements * kElementBytes;
    const auto finish = [&](const TimedRounds& schedule) {
      const RoundsOutcome outcome = play_rounds(schedule, start, cost_over(kLink));
      for (const double f : outcome.finish_seconds) EXPECT_NEAR(f, outcome.finish_seconds[0], 1e-12);
      return latest(outcome) - 0.25;
    };
    EXPECT_NEAR(finish(ring(ranks, kElements)), ring_all_reduce_seconds(ranks, bytes, kLink), 1e-12) << ranks;
    EXPECT_NEAR(finish(halving_doubling(ranks, kElements)), halving_doubling_seconds(ranks, bytes, kLink), 1e-12)
        << ranks;
    EXPECT_NEAR(finish(direct(ranks, kElements)), direct_all_reduce_seconds(ranks, bytes, kLink), 1e-12) << ranks;
  }
}

TEST(HopTiming, ARankThatIsLateDelaysThoseThatWaitForIt) {
  // 0 -> 1 -> 2: each hop takes 1 s and 0.5 s of latency.
  const TimedRounds chain = {{{0, 1, 1, Half::kGather}}, {{1, 2, 1, Half::kGather}}};
  const CostOfHop cost = [](const TimedHop&) -> HopCost { return {0.5, 1, 0, 1}; };
  const std::vector<double> early = {0, 2, 1};
  EXPECT_EQ(play_rounds(chain, early, cost).finish_seconds, (std::vector<double>{1, 3, 3.5}));
  const std::vector<double> late = {10, 2, 1};
  EXPECT_EQ(play_rounds(chain, late, cost).finish_seconds, (std::vector<double>{11, 12.5, 13}));
}

TEST(HopTiming, APortCarriesOneHopAtATime) {
  const CostOfHop cost = [](const TimedHop&) -> HopCost { return {0.5, 1, 0, 1}; };
  const std::vector<double> start = {0, 0, 0};
  const TimedRounds one_sender = {{{0, 1, 1, Half::kReduce}, {0, 2, 1, Half::kReduce}}};
  EXPECT_EQ(play_rounds(one_sender, start, cost).finish_seconds, (std::vector<double>{2, 1.5, 2.5}));
  const TimedRounds incast = {{{0, 2, 1, Half::kReduce}, {1, 2, 1, Half::kReduce}}};
  EXPECT_EQ(play_rounds(incast, start, cost).finish_seconds, (std::vector<double>{1, 2, 2.5}));
}

// The hop to rank 1 has its last packet 10 s after the others; both of its ports go on with other hops at once.
TEST(HopTiming, AHopThatWaitsForItsRepetitionsLeavesItsPortsToOthers) {
  const CostOfHop cost = [](const TimedHop& hop) -> HopCost {
    return {0.5, 1, hop.source == 0 && hop.destination == 1 ? 10.0 : 0.0, 1};
  };
  const std::vector<double> start = {0, 0, 0};
  const TimedRounds one_sender = {{{0, 1, 1, Half::kReduce}, {0, 2, 1, Half::kReduce}}};
  EXPECT_EQ(play_rounds(one_sender, start, cost).finish_seconds, (std::vector<double>{2, 11.5, 2.5}));
  const TimedRounds one_receiver = {{{0, 1, 1, Half::kReduce}, {2, 1, 1, Half::kReduce}}};
  EXPECT_EQ(play_rounds(one_receiver, start, cost).finish_seconds, (std::vector<double>{1, 11.5, 2}));
  // The next round needs the repetitions, and the waiting rank sends after them.
  const TimedRounds chain = {{{0, 1, 1, Half::kReduce}}, {{1, 2, 1, Half::kReduce}}};
  EXPECT_EQ(play_rounds(chain, start, cost).finish_seconds, (std::vector<double>{1, 12.5, 13}));
}

TEST(HopTiming, WhatArrivesAfterTheDeadlineIsLateAndNobodyWaitsForIt) {
  // Ten packets in 1 s, after 0.5 s of latency: at 1.2 s seven of them are there.
  const CostOfHop cost = [](const TimedHop&) -> HopCost { return {0.5, 1, 0, 10}; };
  const TimedRounds one = {{{0, 1, 1, Half::kReduce}}};
  const std::vector<double> together = {0, 0};
  RoundsOutcome outcome = play_rounds(one, together, cost, 1.2);
  EXPECT_EQ(outcome.in_time, (std::vector<std::uint64_t>{7}));
  EXPECT_EQ(outcome.finish_seconds, (std::vector<double>{1, 1.2}));
  outcome = play_rounds(one, together, cost, 1.5);
  EXPECT_EQ(outcome.in_time, (std::vector<std::uint64_t>{10}));
  EXPECT_EQ(outcome.finish_seconds, (std::vector<double>{1, 1.5}));
  // A sender that starts a second later than its receiver is late by that second.
  const std::vector<double> apart = {1, 0};
  outcome = play_rounds(one, apart, cost, 1.7);
  EXPECT_EQ(outcome.in_time, (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(outcome.finish_seconds, (std::vector<double>{2, 1.7}));
  outcome = play_rounds(one, apart, cost, 1.4);
  EXPECT_EQ(outcome.in_time, (std::vector<std::uint64_t>{0}));
  // Everything arrives if there is no deadline.
  outcome = play_rounds(one, apart, cost);
  EXPECT_EQ(outcome.in_time, (std::vector<std::uint64_t>{10}));
  EXPECT_EQ(outcome.finish_seconds, (std::vector<double>{2, 2.5}));
}

TEST(HopTiming, TheDeadlineCountsRoundsSinceTheLastArrival) {
  const CostOfHop cost = [](const TimedHop& hop) -> HopCost {
    return {0, hop.half == Half::kReduce ? 5.0 : 1.0, 0, 10};
  };
  const TimedRounds there_and_back = {{{0, 1, 1, Half::kReduce}}, {{1, 0, 1, Half::kGather}}};
  const std::vector<double> start = {0, 0};
  // Rank 1 continues at 2 s with four of ten packets. Rank 0 waits for it, up to two deadlines.
  RoundsOutcome outcome = play_rounds(there_and_back, start, cost, 2);
  EXPECT_EQ(outcome.in_time, (std::vector<std::uint64_t>{4, 10}));
  EXPECT_EQ(outcome.finish_seconds, (std::vector<double>{3, 3}));
  // A round in which a rank received something starts its wait anew.
  const TimedRounds twice = {{{0, 1, 1, Half::kGather}}, {{0, 1, 1, Half::kReduce}}};
  outcome = play_rounds(twice, start, cost, 2);
  EXPECT_EQ(outcome.in_time, (std::vector<std::uint64_t>{10, 4}));
  EXPECT_EQ(outcome.finish_seconds, (std::vector<double>{4, 3}));
}

TEST(HopTiming, GoBackNSlowsARingAsMuchAsTheAnchorSays) {
  const auto anchor = read_vectors("retransmission.json").at("all_reduce_slowdown");
  const LinkCost link{5e-6, 25e9};
  constexpr double kBytes = 100e6;
  constexpr int kRanks = 8;
  const double lossless = ring_all_reduce_seconds(kRanks, kBytes, link);
  EXPECT_NEAR(lossless, anchor.at("lossless_seconds").get<double>(), 5e-6);
  Parameters::Members members;
  members.emplace("protocol", Parameters(std::string("go_back_n"), "test"));
  const auto go_back = make_retransmission(Parameters(std::move(members), "test"));
  const LinkTiming timing{link.transfer_seconds(4096), link.round_trip_seconds()};
  const auto packets = static_cast<std::uint64_t>(std::ceil(kBytes / kRanks / 4096));
  for (const auto& row : anchor.at("rows")) {
    // The anchor has the mean of one hop times their number, without the maximum over the links of a round.
    const double p = row.at("p");
    const double extra = 2 * (kRanks - 1) * go_back->expected_extra_seconds(p, packets, timing);
    EXPECT_NEAR(1 + extra / lossless, row.at("factor").get<double>(), 0.01) << row;
    // Played out, each round waits for its slowest link: at least as slow as the mean, and never twice as slow here.
    const Bernoulli process(p);
    std::uint64_t hop_number = 0;
    const CostOfHop cost = [&](const TimedHop& hop) -> HopCost {
      const Link wire{TrafficClass::kTpForward, hop.half, static_cast<std::uint16_t>(hop.source),
                      static_cast<std::uint16_t>(hop.destination)};
      const MessagePosition place{hop_number++ << 32, 0, 0, std::nullopt};
      PacketMask lost(packets);
      process.draw_message(1, wire, place, lost);
      PacketMask missing(packets);
      const Repair repair = go_back->recover(lost, draws_by_slot(process, 1, wire, place), timing, missing);
      return {link.latency_seconds, link.transfer_seconds(kBytes / kRanks) + repair.wire_seconds(timing.slot_seconds),
              repair.idle_seconds(timing.slot_seconds), packets};
    };
    const std::vector<double> start(kRanks, 0);
    const double played = latest(play_rounds(ring(kRanks, 25'000'000), start, cost));
    EXPECT_GT(played, lossless + 0.8 * extra);
    EXPECT_LT(played, lossless + 2 * extra);
  }
}

TEST(Straggler, HasTheMedianAndTheTailThatItWasGiven) {
  for (const double ratio : {1.5, 3.0}) {
    const Straggler straggler(ratio);
    constexpr int kDraws = 100000;
    std::vector<double> factors;
    double log_sum = 0;
    double sum = 0;
    for (int i = 0; i < kDraws; ++i) {
      factors.push_back(straggler.factor(3, Purpose::kTransferStraggler, 5, static_cast<std::uint64_t>(i)));
      log_sum += std::log(factors.back());
      sum += factors.back();
    }
    std::sort(factors.begin(), factors.end());
    // Mean of the logarithms 0, their deviation sigma; the share above p99 is binomial.
    EXPECT_LT(std::abs(log_sum / kDraws), 4 * straggler.sigma() / std::sqrt(kDraws));
    const auto above = static_cast<double>(factors.end() - std::upper_bound(factors.begin(), factors.end(), ratio));
    EXPECT_LT(std::abs(above - 0.01 * kDraws), 4 * std::sqrt(kDraws * 0.01 * 0.99));
    const double deviation = straggler.mean() * std::sqrt(std::expm1(straggler.sigma() * straggler.sigma()));
    EXPECT_LT(std::abs(sum / kDraws - straggler.mean()), 4 * deviation / std::sqrt(kDraws));
  }
}

TEST(Straggler, IsAPureFunctionAndAbsentAtRatio1) {
  const Straggler straggler(2);
  const double factor = straggler.factor(1, Purpose::kComputeStraggler, 2, 3);
  EXPECT_EQ(straggler.factor(1, Purpose::kComputeStraggler, 2, 3), factor);
  EXPECT_NE(straggler.factor(1, Purpose::kComputeStraggler, 2, 4), factor);
  EXPECT_NE(straggler.factor(1, Purpose::kComputeStraggler, 3, 3), factor);
  EXPECT_NE(straggler.factor(1, Purpose::kTransferStraggler, 2, 3), factor);
  EXPECT_NE(straggler.factor(2, Purpose::kComputeStraggler, 2, 3), factor);
  EXPECT_EQ(Straggler(1).factor(1, Purpose::kComputeStraggler, 2, 3), 1);
  EXPECT_THROW(Straggler(0.9), CheckError);
}

TEST(LinkClasses, RanksOfOneNodeHaveTheInnerLink) {
  const LinkClasses links{{1e-6, 1e11}, {5e-6, 1e9}, 4};
  EXPECT_EQ(links.of(0, 3).latency_seconds, 1e-6);
  EXPECT_EQ(links.of(3, 4).latency_seconds, 5e-6);
  EXPECT_EQ(links.of(5, 6).latency_seconds, 1e-6);
  const LinkClasses alike{{1e-6, 1e11}, {5e-6, 1e9}, 0};
  EXPECT_EQ(alike.of(0, 7).latency_seconds, 1e-6);
}

}  // namespace
}  // namespace droptest::sim::hop_timing_test
