// SPDX-License-Identifier: Apache-2.0
// A network from only its text: this program links nothing above comm.
#include "comm/spec/lossy_options_from_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/run_ranks.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/fate_report.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::comm::lossy_options_from_json_test {
namespace {

using testing::HasSubstr;

constexpr auto kClass = sim::TrafficClass::kDpGradient;
constexpr std::chrono::milliseconds kTimeout{20000};
constexpr std::uint64_t kElements = 40000;

LossyOptions options_of(const std::string& text, const Traffic& traffic = {.world_size = 4, .classes = {kClass}}) {
  return lossy_options_from_json(text, "net.json", traffic);
}

std::string error_of(const std::string& text, const Traffic& traffic = {.world_size = 4, .classes = {kClass}}) {
  return config_error_of([&] { (void)options_of(text, traffic); });
}

/// The error of a text with only this member in its network section.
std::string error_in_network(const std::string& member) { return error_of("{\"network\": {" + member + "}}"); }

/// The outcome of two all-reduces on local ranks under a network.
struct Outcome {
  std::vector<std::vector<float>> results;  ///< results of each rank
  std::vector<ClassStatistics> statistics;
  std::optional<VirtualTime> time;
};

Outcome outcome_of(const LossyOptions& options) {
  Outcome outcome;
  outcome.results.resize(4);
  run_ranks(4, kTimeout, [&](Communicator& group) {
    LossyCommunicator lossy(group, options);
    std::vector<float> data(kElements);
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = static_cast<float>(i % 251) + 0.5F * static_cast<float>(group.rank());
    for (std::uint64_t step = 1; step <= 2; ++step) {
      lossy.begin_step(step);
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "gradient", 0});
    }
    lossy.verify_fates();
    const std::vector<ClassStatistics> statistics = lossy.collect_statistics(LinkDetail::kInclude);
    const std::optional<VirtualTime> time = lossy.collect_time();
    outcome.results[static_cast<std::size_t>(group.rank())] = data;
    if (group.rank() == 0) {
      outcome.statistics = statistics;
      outcome.time = time;
    }
  });
  return outcome;
}

TEST(LossyOptionsFromJson, ATextIsTheNetworkThatTypesWouldSay) {
  const Outcome by_text = outcome_of(options_of(R"({
      "network": {"payload_bytes": 128, "loss": {"model": "bernoulli", "loss_rate": "5%"},
                  "gather": {"loss": {"model": "gilbert_elliott", "loss_rate": 0.1, "mean_burst_packets": 4},
                             "fill": "own"}},
      "seed": 18446744073709551615})"));
  LossyOptions typed;
  typed.network.seed = 18446744073709551615U;
  ClassNetwork network;
  network.payload_bytes = 128;
  network.reduce.loss = std::make_shared<sim::Bernoulli>(0.05);
  network.gather.loss = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.1, 4));
  network.gather.fill = Fill::kOwn;
  typed.network.of(kClass) = network;
  const Outcome by_types = outcome_of(typed);
  EXPECT_EQ(by_text.results, by_types.results);
  ASSERT_EQ(by_text.statistics.size(), 1U);
  EXPECT_EQ(by_text.statistics[0].digest, by_types.statistics.at(0).digest);
  EXPECT_GT(by_text.statistics[0].total().lost_packets, 0U);
  EXPECT_FALSE(by_text.time.has_value());
}

TEST(LossyOptionsFromJson, FatesAreThoseOfTheOracle) {
  const LossyOptions options = options_of(
      R"({"network": {"payload_bytes": 128, "loss": {"model": "bernoulli", "loss_rate": 0.05}}, "seed": 7})");
  const Outcome outcome = outcome_of(options);
  ASSERT_EQ(outcome.statistics.size(), 1U);
  ASSERT_EQ(outcome.statistics[0].links.size(), 24U) << "4 ranks to 3 others, in two halves";
  for (const LinkStatistics& link : outcome.statistics[0].links) {
    const sim::FateReport fates =
        sim::report_fates(sim::Bernoulli(0.05), 7, link.link, {0, 0, 0, std::nullopt}, link.counts.packets);
    EXPECT_EQ(link.digest, fates.digest);
    EXPECT_EQ(link.counts.lost_packets, fates.lost);
  }
}

TEST(LossyOptionsFromJson, WhatIsAbsentIsAsInASpec) {
  const LossyOptions options = options_of(R"({"network": {"loss": {"model": "bernoulli", "loss_rate": 0.5}}})");
  EXPECT_EQ(options.network.seed, 1U);
  EXPECT_FALSE(options.time.has_value());
  EXPECT_EQ(options.sample_every_steps, 0U);
  const ClassNetwork& network = *options.network.of(kClass);
  EXPECT_EQ(network.path, "direct");
  EXPECT_EQ(network.payload_bytes, 1408U);
  EXPECT_EQ(network.reduce.fill, Fill::kZero);
  EXPECT_EQ(network.consistency, Consistency::kPerReceiver);
  EXPECT_EQ(network.burst_scope, BurstScope::kLink);
}

TEST(LossyOptionsFromJson, ClassesWithTrafficHaveTheNetwork) {
  const std::string text = R"({"network": {"loss": {"model": "bernoulli", "loss_rate": 0.5},
                                           "classes": {"tp_backward": {"loss": {"model": "none"}}}}})";
  const LossyOptions one = options_of(text);
  const LossyOptions usual = options_of(text, {.world_size = 4});
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    EXPECT_EQ(one.network.of(traffic_class).has_value(), traffic_class == kClass);
    EXPECT_EQ(usual.network.of(traffic_class).has_value(),
              traffic_class != sim::TrafficClass::kControl && traffic_class != sim::TrafficClass::kTpBackward)
        << "control is reliable, and so is a class that says so";
  }
}

TEST(LossyOptionsFromJson, OwnGoesToBothHalvesOfAMeanWhoseContributionsTravelAlone) {
  const auto half_fills = [](const std::string& member, sim::TrafficClass traffic_class) {
    const std::string loss = R"("loss": {"model": "bernoulli", "loss_rate": 0.1})";
    const LossyOptions options = options_of("{\"network\": {" + member + ", " + loss + "}}",
                                            {.world_size = 4, .classes = {kClass, sim::TrafficClass::kTpForward}});
    const ClassNetwork& network = *options.network.of(traffic_class);
    return std::pair(network.reduce.fill, network.gather.fill);
  };
  const std::pair both(Fill::kOwn, Fill::kOwn);
  const std::pair gather(Fill::kZero, Fill::kOwn);
  EXPECT_EQ(half_fills(R"("fill": "own")", kClass), both);
  EXPECT_EQ(half_fills(R"("fill": "own")", sim::TrafficClass::kTpForward), gather);
  EXPECT_EQ(half_fills(R"("fill": "own", "path": "ring")", kClass), gather);
  EXPECT_EQ(half_fills(R"("fill": "own", "reduce": {"fill": "stale"})", kClass), std::pair(Fill::kStale, Fill::kOwn));
  const std::string own = R"("loss": {"model": "bernoulli", "loss_rate": 0.1}, "reduce": {"fill": "own"})";
  EXPECT_EQ(error_in_network(own), "(no error)");
  EXPECT_EQ(
      error_in_network(own + R"(, "path": "tree")"),
      "net.json: /network/reduce/fill: got own on path tree, but no receiver there could put its own contribution "
      "in the place of a lost one: a lost packet carries the contributions of several ranks; want the path "
      "direct, or the fill zero, count_rescale, inverse_probability or stale");
  EXPECT_EQ(error_of("{\"network\": {" + own + "}}",
                     {.world_size = 4, .classes = {sim::TrafficClass::kTpForward, sim::TrafficClass::kTpBackward}}),
            "net.json: /network/reduce/fill: got \"own\", which has no meaning in this half of sums (a contribution "
            "stands for another one in means alone, those of dp_gradient), want one of \"zero\", \"count_rescale\", "
            "\"inverse_probability\", \"stale\"");
}

// Every path, fill and recovery of a half of the other classes.
TEST(LossyOptionsFromJson, ClassesOfDataParallelismHaveNetworksOfTheirOwn) {
  const Traffic traffic{.world_size = 4,
                        .classes = {sim::TrafficClass::kTpForward, kClass, sim::TrafficClass::kParameterGather}};
  const std::string loss = R"("loss": {"model": "bernoulli", "loss_rate": 0.1})";
  for (const std::string path : {"contribution", "direct", "ring", "halving_doubling", "tree"}) {
    const LossyOptions options = options_of(
        R"({"network": {"classes": {
        "dp_gradient": {"path": ")" +
            path + R"(", "reduce": {"fill": "inverse_probability"}, )" + loss + R"(},
        "parameter_gather": {"path": ")" +
            path + R"(", "fill": "stale", "recovery": {"parity": {"data": 4, "parity": 1}}, )" + loss + "}}}}",
        traffic);
    EXPECT_FALSE(options.network.of(sim::TrafficClass::kTpForward).has_value());
    const ClassNetwork& gradient = *options.network.of(kClass);
    EXPECT_EQ(gradient.path, path);
    EXPECT_EQ(gradient.reduce.fill, Fill::kInverseProbability);
    EXPECT_EQ(gradient.gather.loss == nullptr, path == "contribution");
    const ClassNetwork& gather = *options.network.of(sim::TrafficClass::kParameterGather);
    EXPECT_EQ(gather.path, path);
    EXPECT_EQ(gather.gather.fill, Fill::kStale);
    EXPECT_NE(gather.gather.recovery, nullptr);
    EXPECT_EQ(gather.gather.loss->loss_rate(), 0.1) << path << ": the shorthand is that of its one half";
    EXPECT_EQ(gather.reduce.loss, nullptr) << "it has none";
    EXPECT_EQ(gather.reduce.recovery, nullptr);
    EXPECT_EQ(gather.reduce.fill, Fill::kZero);
  }
}

TEST(LossyOptionsFromJson, ParametersHaveNoReduceHalf) {
  const Traffic traffic{.world_size = 4, .classes = {kClass, sim::TrafficClass::kParameterGather}};
  const auto network_of = [](const std::string& members) { return "{\"network\": {" + members + "}}"; };
  EXPECT_EQ(error_of(network_of(R"("classes": {"parameter_gather": {"reduce": {"fill": "zero"}}})"), traffic),
            "net.json: /network/classes/parameter_gather/reduce: got the reduce half of parameter_gather, whose "
            "messages are gathered and never summed; want it absent");
  // A setting for all classes does not apply to this class if it has no meaning for it.
  const LossyOptions options = options_of(network_of(R"("recovery": {"error_feedback": true}, "reduce":
      {"selection": "largest_norm", "loss": {"model": "bernoulli", "loss_rate": 0.2}},
      "gather": {"loss": {"model": "bernoulli", "loss_rate": 0.1}, "fill": "stale"})"),
                                          traffic);
  const ClassNetwork& gather = *options.network.of(sim::TrafficClass::kParameterGather);
  EXPECT_EQ(gather.reduce.loss, nullptr);
  EXPECT_EQ(gather.reduce.selection, LossSelection::kByFate);
  EXPECT_EQ(gather.recovery.error_feedback, ClassRecovery::ErrorFeedback::kOff);
  EXPECT_EQ(gather.gather.loss->loss_rate(), 0.1);
  EXPECT_EQ(options.network.of(kClass)->recovery.error_feedback, ClassRecovery::ErrorFeedback::kOn);
  EXPECT_EQ(
      error_of(network_of(R"("reduce": {"fill": "own"}, "loss": {"model": "bernoulli", "loss_rate": 0.1})"), traffic),
      "(no error)");
}

TEST(LossyOptionsFromJson, ATimeSectionGivesTheClockAndItsRetransmission) {
  const LossyOptions options = options_of(R"({
      "network": {"loss": {"model": "bernoulli", "loss_rate": "5%"}},
      "time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 100}, "header_bytes": 92,
               "compute_milliseconds": 12, "retransmission": {"protocol": "selective_repeat"}}})");
  ASSERT_TRUE(options.time.has_value());
  EXPECT_DOUBLE_EQ(options.time->links.between.latency_seconds, 5e-6);
  EXPECT_DOUBLE_EQ(options.time->links.between.bytes_per_second, 12.5e9);
  EXPECT_DOUBLE_EQ(*options.time->compute_seconds, 0.012);
  EXPECT_EQ(options.time->header_bytes, 92U);
  EXPECT_TRUE(options.network.of(kClass)->reduce.recovery->is_reliable());
  const Outcome outcome = outcome_of(options);
  ASSERT_TRUE(outcome.time.has_value());
  EXPECT_DOUBLE_EQ(outcome.time->compute_seconds, 0.024);
  EXPECT_GT(outcome.time->repeated, 0U);
  EXPECT_EQ(outcome.statistics.at(0).total().residual_packets, 0U);
}

TEST(LossyOptionsFromJson, ADeadlineLosesPacketsWithoutALossProcess) {
  const LossyOptions options = options_of(R"({
      "network": {"fill": "stale"},
      "time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 100}, "compute_milliseconds": 12,
               "deadline_microseconds": 50}})");
  EXPECT_DOUBLE_EQ(*options.time->deadline_seconds, 50e-6);
  EXPECT_EQ(options.network.of(kClass)->reduce.fill, Fill::kStale);
}

TEST(LossyOptionsFromJson, ProcessesTakeThePacketTimeOfTheLinks) {
  const std::string loss = R"({"network": {"payload_bytes": 408, "loss": {"model": "timed_gilbert_elliott",
      "mean_good_microseconds": 90, "mean_bad_microseconds": 10}})";
  const LossyOptions options = options_of(loss + R"(, "time": {"link": {"latency_microseconds": 5,
      "bandwidth_gbit_per_second": 100}, "header_bytes": 92, "compute_milliseconds": 12}})");
  // 500 bytes at 12.5 GB/s.
  EXPECT_THAT(options.network.of(kClass)->reduce.loss->describe(), HasSubstr("packet_microseconds=0.04"));
  EXPECT_EQ(error_of(loss + "}"),
            "net.json: /network/loss/packet_microseconds: is missing; want the time of a packet on the link, or a time "
            "section with its links");
}

TEST(LossyOptionsFromJson, TracesAreReadAndKnownByTheirHash) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace.txt";
  std::ofstream(path) << "0001\n";
  const auto with = [&path](const std::string& more) {
    return R"({"network": {"loss": {"model": "trace", "file": ")" + path + "\"" + more + "}}}";
  };
  EXPECT_EQ(options_of(with("")).network.of(kClass)->reduce.loss->loss_rate(), 0.25);
  const std::string hash(64, '0');
  EXPECT_THAT(error_of(with(R"(, "sha256": ")" + hash + "\"")),
              testing::MatchesRegex("net.json: /network/loss/file: .*/trace.txt has SHA-256 [0-9a-f]+, want \"0+\": is "
                                    "it the trace that was meant\\?"));
  EXPECT_EQ(error_in_network(R"("loss": {"model": "trace", "file": "/nowhere/t"})"),
            "net.json: /network/loss/file: read /nowhere/t: No such file or directory");
  EXPECT_EQ(error_in_network(R"("loss": {"model": "trace", "file": "/"})"),
            "net.json: /network/loss/file: read /: Is a directory");
}

TEST(LossyOptionsFromJson, WhatIsNotJsonIsRefusedWithItsPlace) {
  EXPECT_THAT(error_of("{\"network\":\n  {\"loss\": tru}}"),
              testing::StartsWith("net.json: line 2, column 15: not JSON: "));
  EXPECT_THAT(error_of(""), testing::StartsWith("net.json: line 1, column 1: not JSON: "));
  EXPECT_EQ(error_of(R"({"network": {"path": "ring", "path": "tree"}})"),
            "net.json: /network/path: the key \"path\" appears twice in its object");
  EXPECT_EQ(error_of(R"({"network": {}, "seed": 1e999})"),
            "net.json: line 1, column 29: got 1e999, want a number in a double's range");
}

TEST(LossyOptionsFromJson, KeysAndTypesAreChecked) {
  EXPECT_EQ(error_of("[]"), "net.json: /: got [], want an object");
  EXPECT_EQ(error_of("{}"), "net.json: /network: got nothing, want an object");
  EXPECT_EQ(error_of(R"({"network": {}, "name": "t"})"),
            "net.json: /name: got an unknown key; did you mean \"time\"? known keys: network, seed, time");
  EXPECT_EQ(error_of(R"({"loss": {"model": "none"}})"),
            "net.json: /loss: got an unknown key; known keys: network, seed, time\n"
            "net.json: /network: got nothing, want an object");
  EXPECT_EQ(error_in_network(R"("los": {"model": "none"})"),
            "net.json: /network/los: got an unknown key; did you mean \"loss\"? known keys: burst_scope, classes, "
            "compression, "
            "consistency, fill, gather, group_ranks, links, loss, path, payload_bytes, recovery, reduce, sized_paths");
  EXPECT_EQ(error_of(R"({"network": "ring"})"), "net.json: /network: got \"ring\", want an object");
  EXPECT_EQ(error_in_network(R"("payload_bytes": "1408")"),
            "net.json: /network/payload_bytes: got \"1408\", want an integer in [8, 1073741824], a multiple of 8");
  EXPECT_EQ(error_of(R"({"network": {}, "seed": -1})"),
            "net.json: /seed: got -1, want an integer in [0, 18446744073709551615]");
  EXPECT_EQ(error_of(R"({"network": {}, "time": {}})"), "net.json: /time/link: got nothing, want an object");
  EXPECT_EQ(error_in_network(R"("classes": {"outr": {}})"),
            "net.json: /network/classes/outr: got an unknown key; did you mean \"outer\"? known keys: dp_gradient, "
            "embedding_gradient, outer, parameter_gather, pp_activation, pp_gradient, sequence_backward, "
            "sequence_forward, tp_backward, tp_forward, tp_recomputation");
}

TEST(LossyOptionsFromJson, ValuesOutOfRangeAreRefused) {
  EXPECT_EQ(error_in_network(R"("payload_bytes": 12)"),
            "net.json: /network/payload_bytes: got 12, want an integer in [8, 1073741824], a multiple of 8");
  EXPECT_EQ(error_in_network(R"("loss": {"model": "bernoulli", "loss_rate": 1.5})"),
            "net.json: /network/loss/loss_rate: got 1.5, want a fraction in [0, 1], or percent as text (\"5%\")");
  EXPECT_EQ(error_in_network(R"("path": "rign")"),
            "net.json: /network/path: got \"rign\", want one of \"contribution\", \"direct\", \"ring\", "
            "\"halving_doubling\", \"tree\", \"hierarchical\", \"auto\"; did you mean \"ring\"?");
  EXPECT_THAT(error_of(R"({"network": {"path": "auto", "loss": {"model": "bernoulli", "loss_rate": 0.1}}})"),
              ::testing::HasSubstr(R"(/network/path: got "auto", which has a meaning in the spec of a run alone)"));
  EXPECT_EQ(error_of(R"({"network": {}, "time": {"link": {"latency_microseconds": -1,
                                                                "bandwidth_gbit_per_second": 100}}})"),
            "net.json: /time/link/latency_microseconds: got -1, want a number in [0, 1000000000]");
}

TEST(LossyOptionsFromJson, RanksOutOfTheWorldAreRefused) {
  const std::string links = R"("loss": {"model": "bernoulli", "loss_rate": 0.1}}]}})";
  const std::string sources = R"({"network": {"links": [{"sources": [0, 4], )" + links;
  EXPECT_EQ(error_of(sources), "net.json: /network/links/0/sources/1: got 4, want ranks from 0 to 3");
  EXPECT_EQ(error_of(sources, {.world_size = 5, .classes = {kClass}}), "(no error)");
  EXPECT_EQ(error_of(R"({"network": {"links": [{"destinations": ["2-4"], )" + links),
            "net.json: /network/links/0/destinations/0: got \"2-4\", want ranks from 0 to 3");
  EXPECT_EQ(error_of(sources, {.world_size = 0}), "net.json: got a world of 0 ranks, want 1 to 65534");
  EXPECT_EQ(error_of(sources, {.world_size = 65535}), "net.json: got a world of 65535 ranks, want 1 to 65534");
  EXPECT_EQ(error_of(sources, {.world_size = 65534}), "(no error)");
}

TEST(LossyOptionsFromJson, WhatHasNoMeaningTogetherIsListedAtOnce) {
  EXPECT_EQ(error_in_network(R"("path": "ring", "consistency": "shared", "recovery": {"hadamard": {"block": 1000}},
                                "loss": {"model": "bernoulli", "loss_rate": 0.1})"),
            "net.json: /network/consistency: got \"shared\", which has no meaning on path ring (each packet travels to "
            "one rank, which forwards its own copy, so no two receivers could share a fate), want "
            "\"per_receiver\"\n"
            "net.json: /network/recovery/hadamard/block: got 1000, want a power of two in [2, 16777216]");
  const std::string clock = R"("time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 100},
                                        "compute_milliseconds": 12, "retransmission": {"protocol": "go_back_0"}}})";
  EXPECT_EQ(error_of(R"({"network": {"loss": {"model": "bernoulli", "loss_rate": 1}}, )" + clock),
            "net.json: /time/retransmission: got \"go_back_0\", but dp_gradient loses every packet of a link in some "
            "step, repeated ones too; want a budget of rounds, or loss rates below 1");
}

TEST(LossyOptionsFromJson, ARetransmissionThatWouldNeverEndIsRefusedWhereSizesAreKnown) {
  const std::string restart = R"({"network": {"loss": {"model": "bernoulli", "loss_rate": 0.08}},
      "time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 100}, "compute_milliseconds": 12,
               "retransmission": {"protocol": "go_back_0"}}})";
  Traffic traffic{.world_size = 2, .classes = {sim::TrafficClass::kTpForward}};
  EXPECT_EQ(error_of(restart, traffic), "(no error)") << "no size is known";
  traffic.largest_elements = 65536;  // two parts of 32768 floats: 94 packets
  EXPECT_EQ(
      error_of(restart, traffic),
      "net.json: /time/retransmission: got \"go_back_0\", which in tp_forward takes 2.53e+03 tries on average for "
      "messages of up to 94 packets under bernoulli(loss_rate=0.08); want at most 1e+03: a lower loss rate, "
      "shorter messages, a budget of rounds, or a protocol that sends only lost packets (selective_repeat)");
  traffic.element_bytes = 2;
  EXPECT_EQ(error_of(restart, traffic), "(no error)") << "half as many packets";
}

TEST(LossyOptionsFromJson, ACompressionIsOfItsClassOrOfAllWithSums) {
  const Traffic traffic{.world_size = 4, .classes = {kClass, sim::TrafficClass::kParameterGather}};
  const LossyOptions options = options_of(R"({"network": {"compression": {"kind": "int4", "block": 64}}})", traffic);
  EXPECT_EQ(options.network.of(kClass)->compression.kind, CompressionKind::kInt4);
  EXPECT_EQ(options.network.of(kClass)->compression.block_elems, 64U);
  EXPECT_FALSE(options.network.of(sim::TrafficClass::kParameterGather)) << "no loss, and no sums to compress";
  EXPECT_THAT(error_of(R"({"network": {"classes": {"parameter_gather": {"compression": {"kind": "int8"}}}}})", traffic),
              HasSubstr("net.json: /network/classes/parameter_gather/compression: got \"int8\" for parameter_gather, "
                        "whose messages are no contributions to sums"));
  EXPECT_FALSE(options_of(R"({"network": {"compression": {"kind": "none"}}})", traffic).network.of(kClass));
}

TEST(LossyOptionsFromJson, MembersOfACompression) {
  const auto compression = [](const std::string& text) {
    return options_of("{\"network\": {\"compression\": " + text + "}}").network.of(kClass)->compression;
  };
  EXPECT_EQ(compression(R"({"kind": "int8"})").block_elems, 256U);
  EXPECT_DOUBLE_EQ(compression(R"({"kind": "top_k"})").fraction, 0.01);
  EXPECT_DOUBLE_EQ(compression(R"({"kind": "top_k", "fraction": "5%"})").fraction, 0.05);
  EXPECT_THAT(error_in_network(R"("compression": {"kind": "top_k", "fraction": 0})"),
              HasSubstr("net.json: /network/compression/fraction: got 0"));
  EXPECT_THAT(error_in_network(R"("compression": {"kind": "int8"}, "path": "ring")"),
              HasSubstr("/network/compression/kind: got int8 on path ring"));
  EXPECT_THAT(error_in_network(R"("compression": {"kind": "int2"})"), HasSubstr("/network/compression/kind"));
  EXPECT_EQ(options_of(R"({"network": {"path": "contribution", "compression": {"kind": "power_sgd", "rank": 2}}})")
                .network.of(kClass)
                ->compression.rank,
            2U);
}

// The reduce half of top_k has no messages, so its loss is that of the pairs.
TEST(LossyOptionsFromJson, TopKHasAGatherHalfAlone) {
  const LossyOptions options = options_of(
      R"({"network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}, "compression": {"kind": "top_k"}}})");
  EXPECT_EQ(options.network.of(kClass)->reduce.loss, nullptr);
  EXPECT_NE(options.network.of(kClass)->gather.loss, nullptr);
}

}  // namespace
}  // namespace droptest::comm::lossy_options_from_json_test
