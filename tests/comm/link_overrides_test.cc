// SPDX-License-Identifier: Apache-2.0
// Links with separate losses, and losses that change over steps, through the loss layer and its statistics.
#include "comm/lossy/link_overrides.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/four_state.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/pattern.h"
#include "sim/loss/schedule.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "sim/loss/trace.h"
#include "sim/loss/trace_format.h"

namespace droptest::comm::link_overrides_test {
namespace {

using Groups = LinkOverride::Groups;
using Process = std::shared_ptr<const sim::LossProcess>;

constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{kClass, "activation", 0};

Process bernoulli(double rate) { return std::make_shared<sim::Bernoulli>(rate); }
sim::Link link(std::uint16_t source, std::uint16_t destination) {
  return {kClass, sim::Half::kReduce, source, destination};
}

TEST(LinkOverrides, ConditionsAllHaveToHold) {
  const LinkOverride any{{}, {}, Groups::kAny, 1, nullptr};
  EXPECT_TRUE(any.matches(link(3, 4)));
  EXPECT_TRUE(any.matches(link(3, sim::Link::kEveryDestination)));
  const LinkOverride from{{{{1, 1}, {4, 6}}}, {}, Groups::kAny, 1, nullptr};
  for (std::uint16_t rank = 0; rank < 9; ++rank) {
    EXPECT_EQ(from.matches(link(rank, 0)), rank == 1 || (rank >= 4 && rank <= 6)) << rank;
    EXPECT_EQ(from.matches(link(rank, sim::Link::kEveryDestination)), rank == 1 || (rank >= 4 && rank <= 6)) << rank;
  }
  const LinkOverride one{{{{1, 1}}}, {{{2, 2}}}, Groups::kAny, 1, nullptr};
  EXPECT_TRUE(one.matches(link(1, 2)));
  EXPECT_FALSE(one.matches(link(2, 1)));
  EXPECT_FALSE(one.matches(link(1, 3)));
  EXPECT_FALSE(one.matches(link(1, sim::Link::kEveryDestination)));
  LinkOverride at_either_end;
  at_either_end.ranks = {{{2, 3}}};
  for (std::uint16_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(at_either_end.matches(link(rank, 0)), rank == 2 || rank == 3) << rank;
    EXPECT_EQ(at_either_end.matches(link(5, rank)), rank == 2 || rank == 3) << rank;
    EXPECT_TRUE(at_either_end.matches(link(2, rank))) << rank;
    EXPECT_FALSE(at_either_end.matches(link(rank, sim::Link::kEveryDestination))) << "shared packets have no end";
  }
  const LinkOverride between{{}, {}, Groups::kBetween, 4, nullptr};
  EXPECT_TRUE(between.matches(link(3, 4)));
  EXPECT_FALSE(between.matches(link(4, 7)));
  const LinkOverride within{{}, {}, Groups::kWithin, 4, nullptr};
  EXPECT_FALSE(within.matches(link(3, 4)));
  EXPECT_TRUE(within.matches(link(4, 7)));
}

TEST(LinkOverrides, TheLastMatchWins) {
  const Process base = bernoulli(0.1);
  const std::vector<LinkOverride> links = {{{{{1, 2}}}, {}, Groups::kAny, 1, bernoulli(0.2)},
                                           {{{{2, 3}}}, {}, Groups::kAny, 1, bernoulli(0.3)},
                                           {{{{3, 3}}}, {{{0, 0}}}, Groups::kAny, 1, nullptr}};
  const auto rate = [&](std::uint16_t source, std::uint16_t destination) {
    const sim::LossProcess* process = loss_of_link(links, link(source, destination), base.get());
    return process == nullptr ? 0 : process->loss_rate();
  };
  EXPECT_EQ(rate(0, 5), 0.1);
  EXPECT_EQ(rate(1, 5), 0.2);
  EXPECT_EQ(rate(2, 5), 0.3);
  EXPECT_EQ(rate(3, 5), 0.3);
  EXPECT_EQ(rate(3, 0), 0);
}

ClassNetwork network_of(std::string_view path, const Process& loss, BurstScope scope) {
  ClassNetwork network;
  network.path = path;
  network.reduce.loss = loss;
  network.gather.loss = loss;
  network.burst_scope = scope;
  network.payload_bytes = 16;  // four floats
  return network;
}

/// Statistics after `steps` steps of one all-reduce each; fates are compared between the ends of each link.
ClassStatistics run(int ranks, const ClassNetwork& network, std::uint64_t steps, std::uint64_t elements) {
  LossyOptions options;
  options.network.seed = 77;
  options.network.of(kClass) = network;
  ClassStatistics result;
  std::mutex mutex;
  run_ranks(ranks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    for (std::uint64_t step = 0; step < steps; ++step) {
      lossy.begin_step(step);
      std::vector<float> data(elements, 1.0F);
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
    }
    lossy.verify_fates();
    const auto statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kInclude);
    const std::scoped_lock lock(mutex);
    if (inner.rank() == 0) result = statistics.at(0);
  });
  return result;
}

TEST(LinkOverrides, EachLinkIsHeldAgainstItsOwnProcess) {
  ClassNetwork network = network_of("direct", bernoulli(0.05), BurstScope::kLink);
  network.reduce.links = {{{}, {}, Groups::kBetween, 2, bernoulli(0.4)}, {{{{0, 0}}}, {{{1, 1}}}, Groups::kAny, 1, {}}};
  network.gather.links = {{{{{3, 3}}},
                           {},
                           Groups::kAny,
                           1,
                           std::make_shared<sim::FourState>(sim::FourStateRates{0.1, 0.4, 0.2, 0.5, 0.02})}};
  const ClassStatistics statistics = run(4, network, 10, 4000);
  ASSERT_EQ(statistics.links.size(), 24U);
  double expected = 0;
  double variance = 0;
  for (const LinkStatistics& of_link : statistics.links) {
    const sim::Link& l = of_link.link;
    const bool reduce = l.half == sim::Half::kReduce;
    double rate = reduce && l.source / 2 != l.destination / 2 ? 0.4 : 0.05;
    if (reduce && l.source == 0 && l.destination == 1) rate = 0;
    if (!reduce && l.source == 3) rate = network.gather.links[0].loss->loss_rate();
    EXPECT_NEAR(of_link.counts.configured_rate(), rate, 1e-15) << l.source << " " << l.destination;
    EXPECT_LT(std::fabs(of_link.counts.z()), 4.5) << l.source << " " << l.destination;
    if (rate == 0) {
      EXPECT_EQ(of_link.counts.lost_packets, 0U);
    }
    expected += of_link.counts.expected_lost;
    variance += of_link.counts.expected_lost_variance;
  }
  const LossCounts total = statistics.total();
  EXPECT_NEAR(total.expected_lost, expected, 1e-9);
  EXPECT_NEAR(total.expected_lost_variance, variance, 1e-9);
  EXPECT_LT(std::fabs(total.z()), 4);
}

TEST(LinkOverrides, OneBadLinkInAReliableNetwork) {
  ClassNetwork network = network_of("direct", nullptr, BurstScope::kLink);
  network.reduce.links = {{{{{2, 2}}}, {{{0, 0}}}, Groups::kAny, 1, bernoulli(1)}};
  const ClassStatistics statistics = run(3, network, 1, 300);
  EXPECT_EQ(statistics.total().lost_packets, 25U);  // a third of 300 elements, four to a packet
  EXPECT_EQ(statistics.total().z(), 0);
}

TEST(LinkOverrides, OnContributionASourceIsSlow) {
  ClassNetwork network = network_of("contribution", nullptr, BurstScope::kLink);
  network.reduce.links = {{{{{1, 1}}}, {}, Groups::kAny, 1, bernoulli(1)}};
  const ClassStatistics statistics = run(3, network, 2, 300);
  EXPECT_EQ(statistics.total().lost_packets, 150U);
}

TEST(LinkOverrides, WhatHasNoMeaningIsRefusedWithTheReason) {
  const auto error_of = [](const ClassNetwork& network) -> std::string {
    try {
      validate(network);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  ClassNetwork network = network_of("contribution", bernoulli(0.1), BurstScope::kLink);
  network.reduce.links = {{{}, {{{1, 1}}}, Groups::kAny, 1, bernoulli(1)}};
  EXPECT_EQ(
      error_of(network),
      "links/0 of the reduce half: got destinations, ranks or groups, but a contribution that is lost is missed by "
      "all ranks, so its links have a source only; want sources");
  network = network_of("direct", bernoulli(0.1), BurstScope::kLink);
  network.gather.links = {{{}, {}, Groups::kWithin, 2, bernoulli(1)}};
  EXPECT_EQ(error_of(network), "no error");
  network.consistency = Consistency::kShared;
  EXPECT_NE(
      error_of(network).find("links/0 of the gather half: got destinations, ranks or groups, but with shared fates"),
      std::string::npos);
  network = network_of("direct", bernoulli(0.1), BurstScope::kLink);
  network.reduce.fill = Fill::kInverseProbability;
  EXPECT_EQ(error_of(network), "no error");
  network.reduce.links = {{{}, {}, Groups::kWithin, 2, bernoulli(1)}};
  EXPECT_NE(error_of(network).find("the rate differs between links or steps"), std::string::npos);
}

Process schedule() {
  std::vector<sim::Phase> phases;
  phases.push_back({2, std::make_unique<sim::Bernoulli>(1)});
  phases.push_back({4, std::make_unique<sim::GilbertElliott>(sim::rates_of_burst(0.1, 4))});
  phases.push_back({8, std::make_unique<sim::Bernoulli>(0)});
  return std::make_shared<sim::Schedule>(std::move(phases), "schedule");
}

TEST(LossOverSteps, StatisticsAreRightPiecewise) {
  for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
    const ClassStatistics statistics = run(3, network_of("direct", schedule(), scope), 10, 3000);
    const sim::GilbertElliott chain(sim::rates_of_burst(0.1, 4));
    for (const LinkStatistics& of_link : statistics.links) {
      EXPECT_EQ(of_link.counts.packets, 2500U);
      EXPECT_NEAR(of_link.counts.expected_lost, 2 * 250 + 0.1 * 4 * 250, 1e-9);
      const double variance =
          scope == BurstScope::kLink ? chain.lost_count_variance(1000) : 4 * chain.lost_count_variance(250);
      EXPECT_NEAR(of_link.counts.expected_lost_variance, variance, 1e-9);
      EXPECT_LT(std::fabs(of_link.counts.z()), 4.5);
      EXPECT_GE(of_link.counts.bursts.rbegin()->first, scope == BurstScope::kLink ? 500U : 250U);
    }
    EXPECT_EQ(statistics.collectives, 10U);
    EXPECT_EQ(statistics.untouched, 4U) << "steps 0, 1, 8 and 9";
  }
}

TEST(LossOverSteps, EveryProcessWorksInBothScopes) {
  const sim::PacketMask trace = sim::parse_trace("0001000110000010000000000000000", "t");
  const std::vector<Process> processes = {
      std::make_shared<sim::FourState>(sim::FourStateRates{0.05, 0.4, 0.2, 0.5, 0.02}),
      std::make_shared<sim::Pattern>(3, 17, 5),
      std::make_shared<sim::Trace>(trace, sim::TraceStart::kBeginning, "t"),
      std::make_shared<sim::Trace>(trace, sim::TraceStart::kRandom, "t"),
      std::make_shared<sim::TimedGilbertElliott>(sim::TimedRates{50, 5, 0.5, 7, 0, 1}),
      std::make_shared<sim::TimedGilbertElliott>(sim::TimedRates{50, 5, 0.5, 7, 0.01, 0.7}),
      std::make_shared<sim::GilbertElliott>(sim::GilbertElliottRates{0.9, 0.8, 0, 1}),
      schedule()};
  for (const Process& process : processes) {
    for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
      for (const std::string_view path : {"direct", "contribution"}) {
        SCOPED_TRACE(process->describe() + " " + std::string(path));
        const ClassStatistics statistics = run(3, network_of(path, process, scope), 30, 700);
        for (const LinkStatistics& of_link : statistics.links) {
          EXPECT_LT(std::fabs(of_link.counts.z()), 4.5);
          if (process->counts_by_message() && dynamic_cast<const sim::TimedGilbertElliott*>(process.get()) == nullptr) {
            EXPECT_EQ(of_link.counts.expected_lost_variance, 0);
            EXPECT_EQ(of_link.counts.z(), 0) << "the count of fixed fates is known";
          }
        }
      }
    }
  }
}

TEST(LossOverSteps, APatternBeginsAnewWithEachMessageWhereIndicesDo) {
  const Process pattern = std::make_shared<sim::Pattern>(1, 9, 0);
  // Two ranks, messages of 7 packets each way: on the link every 10th packet, per message always the first.
  EXPECT_EQ(run(2, network_of("direct", pattern, BurstScope::kLink), 10, 56).total().lost_packets, 4U * 7);
  EXPECT_EQ(run(2, network_of("direct", pattern, BurstScope::kMessage), 10, 56).total().lost_packets, 4U * 10);
}

}  // namespace
}  // namespace droptest::comm::link_overrides_test
