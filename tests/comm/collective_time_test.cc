// SPDX-License-Identifier: Apache-2.0
// Virtual time of an all-reduce: the ranks against the closed forms, and against the simulation without ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/lab/collective_experiment.h"
#include "comm/lossy/clock/collective_timing.h"
#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "sim/recovery/parity.h"
#include "sim/time/timing_theory.h"
#include "tests/comm/timed_network.h"
#include "tests/sanitizers.h"
#include "tests/sim/timing_formulas.h"

namespace droptest::comm::collective_time_test {
namespace {

CallShape all_reduce_of(std::uint64_t elements) { return {Operation::kAllReduce, ElementType::kFloat32, elements}; }

TEST(CollectiveTime, TheCollectiveExperimentMeasuresItBesideTheClosedForm) {
  CollectiveExperiment experiment;
  experiment.network = *options_of("direct", 0.05, model_of()).network.of(kClass);
  experiment.ranks = 4;
  experiment.elements = kElements;
  experiment.trials = 20;
  EXPECT_FALSE(run_collective_experiment(experiment).seconds.has_value());
  experiment.time = model_of();
  CollectiveExperimentResult result = run_collective_experiment(experiment);
  ASSERT_TRUE(result.seconds && result.seconds->expected);
  EXPECT_NEAR(result.seconds->measured, *result.seconds->expected, 1e-12);
  const double lossless = result.seconds->measured;
  apply_recovery(experiment.network, protocol("selective_repeat"));
  result = run_collective_experiment(experiment);
  EXPECT_EQ(result.nmse.measured < 1e-12, true);
  EXPECT_GT(result.seconds->measured, lossless + 4 * result.seconds->standard_error);
  EXPECT_FALSE(result.seconds->expected.has_value());  // the slowest of many links has no closed form
  EXPECT_GT(result.time->repeated, 0U);
}

// The hops of a schedule take the time of its closed form, and their late packets are lost.
TEST(CollectiveTime, PathsOfHopsTakeTheirClosedForms) {
  CollectiveExperiment experiment;
  experiment.network = *options_of("ring", 0.05, model_of()).network.of(kClass);
  experiment.ranks = 4;
  experiment.elements = kElements;
  experiment.trials = 2;
  experiment.time = model_of();
  CollectiveExperimentResult result = run_collective_experiment(experiment);
  EXPECT_NEAR(result.seconds->measured, sim::ring_all_reduce_seconds(4, kElements * sizeof(float), kLink), 1e-12);
  EXPECT_EQ(*result.seconds->expected, sim::ring_all_reduce_seconds(4, kElements * sizeof(float), kLink));
  experiment.network.path = "halving_doubling";
  result = run_collective_experiment(experiment);
  EXPECT_NEAR(result.seconds->measured, sim::halving_doubling_seconds(4, kElements * sizeof(float), kLink), 1e-12);
  experiment.network.reduce.loss = nullptr;
  experiment.network.gather.loss = nullptr;
  experiment.time->deadline_seconds = kLink.latency_seconds;  // hardly more than the first bit arrives in time
  result = run_collective_experiment(experiment);
  EXPECT_GT(result.nmse.measured, 0.5);
  EXPECT_FALSE(result.nmse.expected.has_value());
  EXPECT_GT(result.time->late, 0U);
}

// A round is over when half of the last of its three hops has come: an eighth of each part's contributions is late.
TEST(CollectiveTime, SurvivalCountsWhatIsLate) {
  CollectiveExperiment experiment;
  experiment.network = *options_of("direct", 0, model_of()).network.of(kClass);
  experiment.ranks = 4;
  experiment.elements = kElements;
  experiment.trials = 2;
  experiment.time = model_of();
  experiment.time->deadline_seconds = kLink.latency_seconds + 2.5 * kLink.transfer_seconds(kElements / 4 * 4);
  for (const CollectiveExperimentResult& result :
       {run_collective_experiment(experiment), simulate_collective_experiment(experiment)}) {
    EXPECT_DOUBLE_EQ(result.survival_reduce.measured, 0.875);
    EXPECT_DOUBLE_EQ(result.survival_gather.measured, 0.875);
    EXPECT_DOUBLE_EQ(result.survival.measured, 0.765625);
    EXPECT_FALSE(result.survival.expected.has_value()) << "lateness has no closed form";
    EXPECT_EQ(result.statistics.untouched, 0U);
  }
}

// The messages of a compression have times of their own: of factors, one sum can be in time and the other late.
TEST(CollectiveTime, CompressedSumsAreAsLateInASimulationAsOnRanks) {
  struct Case {
    std::string_view path;
    Compression compression;
    std::uint64_t elements_of_message;
  };
  for (const Case& item : {Case{"direct", {CompressionKind::kTopK, 1, 0.05}, 2 * 410},
                           Case{"contribution", {CompressionKind::kPowerSgd, 1, 0, 4}, 364}}) {
    CollectiveExperiment experiment;
    experiment.network = *options_of(item.path, 0, model_of()).network.of(kClass);
    experiment.network.compression = item.compression;
    experiment.network.reduce.loss = experiment.network.gather.loss = nullptr;
    experiment.ranks = 3;
    experiment.elements = kElements;
    experiment.trials = 60;
    experiment.time = model_of();
    experiment.time->transfer_p99_over_p50 = 1.5;
    const double transfer = kLink.transfer_seconds(static_cast<double>(item.elements_of_message * sizeof(float)));
    experiment.time->deadline_seconds = 1.2 * (kLink.latency_seconds + (item.path == "direct" ? 2 : 1) * transfer);
    const CollectiveExperimentResult ran = run_collective_experiment(experiment);
    const CollectiveExperimentResult simulated = simulate_collective_experiment(experiment);
    SCOPED_TRACE(compression_entry(item.compression.kind).name);
    EXPECT_EQ(simulated.statistics.untouched, ran.statistics.untouched);
    EXPECT_EQ(simulated.time->late, ran.time->late);
    EXPECT_THAT(ran.statistics.untouched, testing::AllOf(testing::Gt(5U), testing::Lt(55U)));
    if (item.path != "contribution") continue;
    // Each late packet has 64 elements, or 44 at the end of a sum.
    const double all = static_cast<double>(kElements) * experiment.ranks * static_cast<double>(experiment.trials);
    const double lost_elements = (1 - simulated.survival_reduce.measured) * all;
    const auto late = static_cast<double>(simulated.time->late);
    EXPECT_THAT(lost_elements, testing::AllOf(testing::Ge(44 * late), testing::Lt(64 * late)));
  }
}

TEST(CollectiveTime, ADeadlineIsRefusedWhereFatesOrFactorsWouldNotBeKnown) {
  CollectiveExperiment experiment;
  experiment.network = *options_of("direct", 0.1, model_of()).network.of(kClass);
  experiment.ranks = 2;
  experiment.elements = 64;
  experiment.trials = 1;
  experiment.time = model_of();
  experiment.time->deadline_seconds = 1;
  const auto error = [&](CollectiveExperimentResult (*measure)(const CollectiveExperiment&)) -> std::string {
    try {
      measure(experiment);
    } catch (const ConfigError& refused) {
      return refused.what();
    }
    return "";
  };
  EXPECT_EQ(error(run_collective_experiment), "");
  experiment.network.reduce.fill = Fill::kInverseProbability;
  EXPECT_THAT(error(run_collective_experiment),
              testing::HasSubstr("got inverse_probability with a deadline, which scales every contribution"));
  EXPECT_EQ(error(simulate_collective_experiment), error(run_collective_experiment));
  experiment.network.reduce.fill = Fill::kZero;
  experiment.time->compute_seconds.reset();
  EXPECT_THAT(error(run_collective_experiment), testing::HasSubstr("got a deadline with measured compute time"));
  EXPECT_EQ(error(simulate_collective_experiment), error(run_collective_experiment));
}

// The simulation without ranks has the same clocks, bit for bit, on every path and under each model.
TEST(CollectiveTime, TheSimulationHasTheClocksOfTheRanks) {
  const auto expect_equal = [](const CollectiveExperiment& experiment, const std::string& what) {
    const CollectiveExperimentResult run = run_collective_experiment(experiment);
    const CollectiveExperimentResult dry = simulate_collective_experiment(experiment);
    ASSERT_TRUE(dry.seconds && dry.time) << what;
    EXPECT_EQ(dry.seconds->measured, run.seconds->measured) << what;
    EXPECT_EQ(dry.seconds->standard_error, run.seconds->standard_error) << what;
    EXPECT_EQ(dry.seconds->expected, run.seconds->expected) << what;
    EXPECT_EQ(dry.time->seconds, run.time->seconds) << what;
    EXPECT_NEAR(dry.time->compute_seconds, run.time->compute_seconds, 1e-12) << what;
    EXPECT_EQ(dry.time->packets, run.time->packets) << what;
    EXPECT_EQ(dry.time->repeated, run.time->repeated) << what;
    EXPECT_EQ(dry.time->timeouts, run.time->timeouts) << what;
    EXPECT_EQ(dry.time->late, run.time->late) << what;
  };
  for (const PathEntry& entry : paths()) {
    CollectiveExperiment experiment;
    experiment.network = *options_of(entry.name, 0.1, model_of()).network.of(kClass);
    experiment.network.group_ranks = entry.has_groups ? 2 : 0;
    experiment.ranks = 5;
    experiment.elements = 5000;
    experiment.trials = 3;
    experiment.time = model_of(1e-4);
    experiment.time->links = {{1e-6, 1e10}, kLink, 2};
    experiment.time->compute_p99_over_p50 = 1.5;
    experiment.time->transfer_p99_over_p50 = 2;
    const std::string name(entry.name);
    expect_equal(experiment, name);
    experiment.time->deadline_seconds = 8e-6;
    expect_equal(experiment, name + " with a deadline");
    EXPECT_GT(simulate_collective_experiment(experiment).time->late, 0U) << name;
    experiment.time->deadline_seconds = std::nullopt;
    apply_recovery(experiment.network, protocol("selective_repeat"));
    expect_equal(experiment, name + " on a reliable network");
    EXPECT_GT(simulate_collective_experiment(experiment).time->repeated, 0U) << name;
    experiment.network.consistency = entry.can_share ? Consistency::kShared : Consistency::kPerReceiver;
    for (const char* const with_budget : {"selective_repeat", "go_back_n", "go_back_0"}) {
      apply_recovery(experiment.network, protocol(with_budget, 1));
      expect_equal(experiment, name + " with one round of " + with_budget);
    }
  }
}

// A link that is bad for 100 us on average: messages that follow on each other share its state, those of steps that
// compute for long do not. The experiment itself compares the digests of the ranks and of the simulation.
TEST(CollectiveTime, AProcessWhoseClockIsTimeLooksAtIt) {
  sim::TimedRates rates;
  rates.mean_good_microseconds = 900;
  rates.mean_bad_microseconds = 100;
  rates.packet_microseconds = 0.25;
  for (const std::string_view path : {"direct", "ring", "contribution"}) {
    if (kSanitized && path != "direct") continue;  // thousands of calls that wait for each other
    CollectiveExperiment experiment;
    experiment.network = *options_of(path, 0, model_of()).network.of(kClass);
    experiment.network.reduce.loss = std::make_shared<sim::TimedGilbertElliott>(rates);
    experiment.network.gather.loss = path == "contribution" ? nullptr : experiment.network.reduce.loss;
    experiment.ranks = 2;
    experiment.elements = 64;
    experiment.trials = 3000;
    // The variance of a half's count in units of that of independent packets, which the count itself confirms.
    const auto spread = [&](double compute_seconds) {
      experiment.time = model_of(compute_seconds);
      const ClassStatistics statistics = run_collective_experiment(experiment).statistics;
      double largest = 0;
      for (const LossCounts& counts : statistics.halves) {
        if (counts.packets == 0) continue;
        EXPECT_LT(std::abs(counts.z()), 4) << path;
        EXPECT_NEAR(counts.configured_rate(), 0.1, 1e-9) << path;
        // A message has one packet, so no two packets are neighbours.
        EXPECT_EQ(counts.mean_burst_packets(), 1) << path;
        largest = std::max(largest, counts.expected_lost_variance / (static_cast<double>(counts.packets) * 0.1 * 0.9));
      }
      const bool is_alone = statistics.halves[1].packets == 0;
      EXPECT_EQ(std::isnan(statistics.total().z()), !is_alone) << "halves see the same states";
      return largest;
    };
    experiment.time = model_of();
    const double apart = simulate_collective_experiment(experiment).seconds->measured * 1e6;
    // States a time t apart have correlation lambda = exp(-t (1/900 + 1/100)); the sum over all pairs is (1 + lambda) /
    // (1 - lambda) of the independent one.
    const double lambda = std::exp(-apart * (1.0 / 900 + 1.0 / 100));
    EXPECT_NEAR(spread(0) / ((1 + lambda) / (1 - lambda)), 1, 0.02) << path;
    EXPECT_NEAR(spread(10e-3), 1, 1e-9) << path;
  }
}

// Messages back to back on links of two speeds, one and a half packets each, under a process that was given a packet
// time far above either link's: each packet has fates of its own, and the counts deviate as their variance says.
TEST(CollectiveTime, PacketsOfEveryLinkHaveTimesOfTheirOwn) {
  sim::TimedRates rates;
  rates.mean_good_microseconds = 9;
  rates.mean_bad_microseconds = 1;
  rates.packet_microseconds = 3;
  for (const double between_bytes_per_second : {1e9, 1e10}) {
    double squares = 0;  // sum over both halves, which see the same states
    constexpr int kSeeds = 24;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      CollectiveExperiment experiment;
      experiment.network = *options_of("direct", 0, model_of()).network.of(kClass);
      experiment.network.reduce.loss = std::make_shared<sim::TimedGilbertElliott>(rates);
      experiment.network.gather.loss = experiment.network.reduce.loss;
      experiment.ranks = 4;
      experiment.elements = 4 * 96;
      experiment.trials = 400;
      experiment.seed = static_cast<std::uint64_t>(seed);
      experiment.time = model_of();
      experiment.time->links = {{1e-9, 5e9}, {1e-9, between_bytes_per_second}, 2};
      experiment.time->header_bytes = 20;
      for (const LossCounts& counts : simulate_collective_experiment(experiment).statistics.halves) {
        EXPECT_LT(std::abs(counts.z()), 4) << "seed " << seed;
        squares += counts.z() * counts.z() / 2;
      }
    }
    EXPECT_NEAR(squares / kSeeds, 1, 4 * std::sqrt(2.0 / kSeeds)) << between_bytes_per_second;
  }
}

TEST(CollectiveTime, MessagesThatWouldNeverGetAcrossAreRefused) {
  CollectiveExperiment experiment;
  experiment.network = *options_of("direct", 0.01, model_of()).network.of(kClass);
  experiment.ranks = 2;
  experiment.elements = 3'000'000;
  experiment.trials = 1;
  experiment.time = model_of();
  apply_recovery(experiment.network, protocol("go_back_0"));
  const auto error = [&experiment]() -> std::string {
    try {
      simulate_collective_experiment(experiment);
    } catch (const ConfigError& refusal) {
      return refusal.what();
    }
    return "(no error)";
  };
  EXPECT_THAT(error(), ::testing::AllOf(::testing::HasSubstr("collective: retransmission: takes "),
                                        ::testing::HasSubstr("of up to 23438 packets under bernoulli(loss_rate=0.01)"),
                                        ::testing::HasSubstr("want at most 1e+03")));
  // The limit counts the packets of one hop: an eighth of the elements on a ring of eight.
  experiment.elements = 8 * 64 * 500;
  experiment.ranks = 8;
  for (const auto& [path, packets] :
       {std::pair<const char*, int>{"ring", 500}, {"halving_doubling", 2000}, {"tree", 2000}, {"contribution", 4000}}) {
    experiment.network.path = path;
    experiment.network.reduce.loss = std::make_shared<sim::Bernoulli>(0.9 * std::log(1000.0) / packets);
    experiment.network.gather.loss = path == std::string("contribution") ? nullptr : experiment.network.reduce.loss;
    EXPECT_EQ(error(), "(no error)") << path;
    experiment.network.reduce.loss = std::make_shared<sim::Bernoulli>(1.1 * std::log(1000.0) / packets);
    EXPECT_THAT(error(), ::testing::HasSubstr("of up to " + std::to_string(packets) + " packets")) << path;
  }
}

// Losses after the budget of rounds are tolerated: p^(rounds + 1) of the packets stay missing. The clock and the loss
// layer count the same repetitions, on links with the same fates as without a clock.
TEST(CollectiveTime, ABudgetOfRoundsTakesTimeAndLeavesTheRestMissing) {
  constexpr double kLoss = 0.3;
  for (const std::string_view path : {"direct", "ring", "contribution"}) {
    CollectiveExperiment experiment;
    experiment.network = *options_of(path, kLoss, model_of()).network.of(kClass);
    experiment.ranks = 4;
    experiment.elements = kElements;
    experiment.trials = 60;
    experiment.time = model_of();
    const CollectiveExperimentResult tolerant = run_collective_experiment(experiment);
    double seconds = tolerant.seconds->measured;
    for (const std::int64_t rounds : {1, 2, 3}) {
      apply_recovery(experiment.network, protocol("selective_repeat", rounds));
      const CollectiveExperimentResult result = run_collective_experiment(experiment);
      const LossCounts counts = result.statistics.total();
      const std::string what = std::string(path) + " with rounds " + std::to_string(rounds);
      EXPECT_EQ(counts.lost_packets, tolerant.statistics.total().lost_packets) << "fates of first transmissions stay";
      EXPECT_EQ(counts.resent_packets, result.time->repeated) << what;
      EXPECT_EQ(counts.resend_rounds, result.time->timeouts) << what;
      const double missing = std::pow(kLoss, static_cast<double>(rounds) + 1);
      const auto packets = static_cast<double>(counts.packets);
      EXPECT_LT(std::abs(static_cast<double>(counts.residual_packets) - packets * missing),
                4 * std::sqrt(packets * missing))
          << what;
      ASSERT_TRUE(result.nmse.expected.has_value()) << what;
      EXPECT_LT(std::abs(result.nmse.measured - *result.nmse.expected), 4 * result.nmse.standard_error) << what;
      EXPECT_GT(result.seconds->measured, seconds) << what;
      seconds = result.seconds->measured;
      EXPECT_EQ(simulate_collective_experiment(experiment).seconds->measured, seconds) << what;
    }
    apply_recovery(experiment.network, protocol("selective_repeat"));
    const CollectiveExperimentResult reliable = run_collective_experiment(experiment);
    EXPECT_LT(reliable.nmse.measured, 1e-12) << path;
    EXPECT_EQ(reliable.statistics.total().residual_packets, 0U) << path;
    EXPECT_GT(reliable.seconds->measured, seconds) << path;
  }
}

// A replay packet by packet with equal fates, in which a wait delays only its own message. A round with losses then
// costs about one more round trip, however many messages lose something.
TEST(CollectiveTime, WaitsForFeedbackDelayTheirOwnMessageAlone) {
  struct Case {
    int ranks;
    double latency_seconds;
    double loss_rate;
    double lossless_seconds;
    double seconds;
  };
  for (const Case& item : {Case{16, 20e-6, 0.001, 669e-6, 750e-6}, Case{64, 5e-6, 0.01, 671e-6, 713e-6}}) {
    CollectiveExperiment experiment;
    experiment.network = *options_of("direct", item.loss_rate, model_of()).network.of(kClass);
    experiment.network.payload_bytes = 1408;
    experiment.ranks = item.ranks;
    experiment.elements = 1'048'576;
    experiment.trials = kAddressSanitizer ? 4 : 40;
    experiment.time = model_of();
    experiment.time->links.within = experiment.time->links.between = {item.latency_seconds, 100e9 / 8};
    EXPECT_NEAR(simulate_collective_experiment(experiment).seconds->measured, item.lossless_seconds, 1e-6);
    apply_recovery(experiment.network, protocol("selective_repeat"));
    EXPECT_NEAR(simulate_collective_experiment(experiment).seconds->measured, item.seconds, 12e-6) << item.ranks;
  }
}

// One message over one link: its mean time under a budget is the protocol's closed form.
TEST(CollectiveTime, OneHopWithABudgetTakesItsExpectedTime) {
  CollectiveExperiment experiment;
  experiment.network = *options_of("ring", 0.1, model_of()).network.of(kClass);
  experiment.network.gather.loss = nullptr;
  experiment.ranks = 2;
  experiment.elements = 2 * 64 * 32;  // 32 packets to the other rank
  experiment.trials = 3000;
  experiment.time = model_of();
  const double lossless = simulate_collective_experiment(experiment).seconds->measured;
  const sim::LinkTiming timing{kLink.transfer_seconds(256), kLink.round_trip_seconds()};
  for (const char* const name : {"selective_repeat", "go_back_n", "go_back_0"}) {
    const auto made = protocol(name, 2);
    apply_recovery(experiment.network, made);
    const CollectiveExperimentResult result = simulate_collective_experiment(experiment);
    // A collective ends when the slower of its two hops has come: between one mean and two.
    const double extra = made->expected_extra_seconds(0.1, 32, timing);
    EXPECT_GT(result.seconds->measured - lossless, extra) << name;
    EXPECT_LT(result.seconds->measured - lossless, 2 * extra) << name;
  }
}

// A bad stay of the link lasts through the rounds: with a clock that sees time, repetitions a round trip later are lost
// too.
TEST(CollectiveTime, RepetitionsMeetTheEpisodeThatLostThePacket) {
  sim::TimedRates rates;
  rates.mean_good_microseconds = 9000;
  rates.mean_bad_microseconds = 1000;
  rates.packet_microseconds = 1;
  CollectiveExperiment experiment;
  experiment.network = *options_of("direct", 0, model_of()).network.of(kClass);
  experiment.network.reduce.loss = std::make_shared<sim::TimedGilbertElliott>(rates);
  experiment.ranks = 2;
  experiment.elements = 2 * 64 * 4;
  experiment.trials = 4000;
  experiment.time = model_of(1e-2);
  apply_recovery(experiment.network, protocol("selective_repeat", 2));
  const LossCounts counts = simulate_collective_experiment(experiment).statistics.total();
  const double residual = static_cast<double>(counts.residual_packets) / static_cast<double>(counts.lost_packets);
  // Two round trips of 10 us in an episode of 1 ms: nearly all lost packets are lost again; independent losses would
  // give p^2 = 1 %.
  EXPECT_GT(residual, 0.9);
  EXPECT_LT(residual, 1);
}

// Messages from send to recv go on behind the collectives of their link.
TEST(CollectiveTime, MessagesAndCollectivesShareNoPlaceOfALink) {
  LossyOptions options = options_of("direct", 0.1, model_of());
  ClassNetwork& network = *options.network.of(kClass);
  apply_recovery(network, protocol("selective_repeat"));
  for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
    network.burst_scope = scope;
    CollectiveTiming timing(options.network, *options.time, 0, {0, 1});
    std::array<double, 2> clocks = {0, 0};
    constexpr std::uint64_t kElementsOfMessage = 64;  // one packet
    std::set<std::uint64_t> collectives;
    for (int i = 0; i < 40000; ++i) {
      timing.collective(all_reduce_of(2 * kElementsOfMessage), {kClass}, clocks, [&](const Transmission& message) {
        if (message.link.half == sim::Half::kReduce || message.link.source != 0) return;
        collectives.insert(message.repeated->place.first_packet);
      });
    }
    EXPECT_EQ(collectives.size(), 40000U);
    for (std::uint64_t i = 0; i < 100; ++i) {
      const Transmission message = timing.message({kClass}, 0, 1, kElementsOfMessage, clocks[0]);
      const sim::MessagePosition& place = message.repeated->place;
      EXPECT_FALSE(collectives.contains(place.first_packet)) << i;
      const std::uint64_t since_origin = scope == BurstScope::kMessage ? 0 : 40000 + i;
      EXPECT_EQ(place.first_packet - place.origin, since_origin);
    }
  }
}

// Numerics of pipelines with a frozen embedding depend on it (numerics_version.cc).
TEST(CollectiveTime, ASumWithoutElementsTakesTheLatenciesOfAnAggregationAndNoTimeOnOtherPaths) {
  for (const PathEntry& path : paths()) {
    LossyOptions options = options_of(path.name, 0, model_of());
    if (path.has_groups) options.network.of(kClass)->group_ranks = 2;
    CollectiveTiming timing(options.network, *options.time, 0, {0, 1});
    std::array<double, 2> clocks = {1, 2};
    timing.collective(all_reduce_of(0), {kClass}, clocks, [](const Transmission&) {});
    const double end = 2 + 2 * kLink.latency_seconds;
    const bool meets = path.route == Route::kAggregated;
    EXPECT_THAT(clocks, testing::ElementsAre(testing::DoubleNear(meets ? end : 1, 1e-12),
                                             testing::DoubleNear(meets ? end : 2, 1e-12)))
        << path.name;
  }
}

// The n-th message of one class on a link is not as late as that of another class.
TEST(CollectiveTime, ClassesOfALinkHaveStragglersOfTheirOwn) {
  LossyOptions options = options_of("direct", 0.1, model_of());
  options.time->transfer_p99_over_p50 = 3;
  options.network.of(sim::TrafficClass::kTpBackward) = options.network.of(kClass);
  const auto factors = [&](sim::TrafficClass of) {
    CollectiveTiming timing(options.network, *options.time, 0, {0, 1});
    std::vector<double> all;
    for (int i = 0; i < 3; ++i) all.push_back(timing.message({of}, 0, 1, 64, 0).factor);
    return all;
  };
  const std::vector<double> forward = factors(kClass);
  EXPECT_EQ(factors(kClass), forward);
  EXPECT_EQ(std::set<double>(forward.begin(), forward.end()).size(), 3U);
  const std::vector<double> backward = factors(sim::TrafficClass::kTpBackward);
  for (std::size_t i = 0; i < forward.size(); ++i) EXPECT_NE(backward[i], forward[i]) << i;
}

// Two nodes of two ranks, with slow links between the nodes: a message to all ranks of a group within one node has the
// round trip of the links within.
TEST(CollectiveTime, WhatGoesToAllIsSentAgainAtThePaceOfTheGroupsLinks) {
  LossyOptions options = options_of("contribution", 0.2, model_of());
  TimeModel& model = *options.time;
  model.links.between = {1e-3, model.links.within.bytes_per_second};
  model.links.group_ranks = 2;
  apply_recovery(*options.network.of(kClass), protocol("selective_repeat"));
  const auto round_trip = [&](std::vector<int> world_ranks) {
    CollectiveTiming timing(options.network, model, 0, std::move(world_ranks));
    std::array<double, 2> clocks = {0, 0};
    double seconds = 0;
    timing.collective(all_reduce_of(kElements), {kClass}, clocks, [&](const Transmission& message) {
      if (message.repeated) seconds = message.repeated->timing.round_trip_seconds;
    });
    return seconds;
  };
  EXPECT_EQ(round_trip({2, 3}), model.links.within.round_trip_seconds());
  EXPECT_EQ(round_trip({1, 2}), model.links.between.round_trip_seconds());
}

TEST(CollectiveTime, ParityPacketsTakeTheirTime) {
  CollectiveExperiment experiment;
  experiment.network = *options_of("direct", 0.05, model_of()).network.of(kClass);
  experiment.ranks = 4;
  experiment.elements = kElements;  // 32 packets of 256 bytes to each rank
  experiment.trials = 1;
  experiment.time = model_of();
  const double plain = simulate_collective_experiment(experiment).seconds->measured;
  experiment.network.reduce.recovery = experiment.network.gather.recovery =
      std::make_shared<sim::Parity>(sim::ParityCode{8, 2, 1});
  const CollectiveExperimentResult coded = run_collective_experiment(experiment);
  // Ten packets for eight: the two latencies stay, the transfers take a quarter more.
  const double transfers = plain - 2 * kLink.latency_seconds;
  EXPECT_NEAR(coded.seconds->measured, plain + transfers / 4, 1e-12);
  EXPECT_FALSE(coded.seconds->expected.has_value()) << "the closed form is that of uncoded messages";
  EXPECT_EQ(coded.time->packets, 2U * 4 * 3 * 40);
}

TEST(CollectiveTime, AReliableNetworkRepeatsWhatSingleLinksLose) {
  CollectiveExperiment experiment;
  experiment.network = *options_of("direct", 0, model_of()).network.of(kClass);
  LinkOverride bad;
  bad.sources.ranges = {{1, 1}};
  bad.loss = std::make_shared<sim::Bernoulli>(0.3);
  experiment.network.reduce.links = experiment.network.gather.links = {bad};
  experiment.ranks = 3;
  experiment.elements = kElements;
  experiment.trials = 2;
  experiment.time = model_of();
  EXPECT_GT(run_collective_experiment(experiment).nmse.measured, 0.01);
  apply_recovery(experiment.network, protocol("selective_repeat"));
  const CollectiveExperimentResult result = run_collective_experiment(experiment);
  EXPECT_LT(result.nmse.measured, 1e-12);
  EXPECT_GT(result.time->repeated, 0U);
}

}  // namespace
}  // namespace droptest::comm::collective_time_test
