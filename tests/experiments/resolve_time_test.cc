// SPDX-License-Identifier: Apache-2.0
// The resolved time section of a spec, and errors with their pointers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::resolve_time_test {
namespace {

const char* const kTime =
    R"(/time={"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 100}, "compute_milliseconds": 12})";

TEST(Resolve, TimeIsWrittenOutAndLosslessClassesStay) {
  EXPECT_FALSE(resolved(kTwoRanks).spec.contains("time"));
  EXPECT_FALSE(resolved(kTwoRanks).config.time.has_value());
  const ResolvedRun run = resolved(kTwoRanks, {kTime, R"(/network/loss={"model": "none"})", "/network/fill=stale"});
  EXPECT_EQ(comm::canonical_json(run.spec["time"]),
            R"({"compute_milliseconds":12.0,"header_bytes":0,"link":{"bandwidth_gbit_per_second":100.0,)"
            R"("latency_microseconds":5.0},"retransmission":{"protocol":"none"},)"
            R"("stragglers":{"compute_p99_over_p50":1.0,"transfer_p99_over_p50":1.0}})");
  EXPECT_EQ(run.spec["network"]["classes"]["tp_forward"]["reduce"]["fill"], "zero");
  EXPECT_EQ(resolve(run.spec, "again").run_id, run.run_id);
  ASSERT_TRUE(run.config.time.has_value());
  EXPECT_DOUBLE_EQ(run.config.time->links.within.latency_seconds, 5e-6);
  EXPECT_DOUBLE_EQ(run.config.time->links.between.bytes_per_second, 12.5e9);
  EXPECT_DOUBLE_EQ(*run.config.time->compute_seconds, 0.012);
  EXPECT_EQ(run.config.network.of(sim::TrafficClass::kTpForward)->reduce.recovery, nullptr);
}

TEST(Resolve, TimeHasGroupsOfRanksDeadlinesAndProtocols) {
  const ResolvedRun run =
      resolved(kTwoRanks,
               {kTime, "/network/fill=stale", "/time/deadline_microseconds=50", R"(/network/loss={"model": "none"})",
                R"(/time/groups={"ranks": 4, "link": {"latency_microseconds": 1, "bandwidth_gbit_per_second": 800}})"});
  EXPECT_DOUBLE_EQ(*run.config.time->deadline_seconds, 50e-6);
  EXPECT_EQ(run.config.time->links.group_ranks, 4);
  EXPECT_DOUBLE_EQ(run.config.time->links.within.latency_seconds, 1e-6);
  // Late packets are lost, so the fill acts without any loss process.
  EXPECT_EQ(run.config.network.of(sim::TrafficClass::kTpForward)->reduce.fill, comm::Fill::kStale);
  const ResolvedRun reliable = resolved(kTwoRanks, {kTime, R"(/time/retransmission={"protocol": "go_back_n"})"});
  for (const auto traffic_class : {sim::TrafficClass::kTpForward, sim::TrafficClass::kTpBackward}) {
    const comm::ClassNetwork& network = *reliable.config.network.of(traffic_class);
    EXPECT_TRUE(network.reduce.recovery->is_reliable());
    EXPECT_EQ(network.gather.recovery->describe(), "go_back_n(window_packets=a round trip, rounds=unlimited)");
  }
  // A budget leaves packets missing, and the fills replace them.
  const ResolvedRun budget =
      resolved(kTwoRanks,
               {kTime, R"(/time/retransmission={"protocol": "selective_repeat", "rounds": 2})", "/network/fill=stale"});
  EXPECT_EQ(budget.config.network.of(sim::TrafficClass::kTpForward)->reduce.recovery->describe(),
            "selective_repeat(rounds=2)");
  EXPECT_EQ(budget.config.network.of(sim::TrafficClass::kTpForward)->reduce.fill, comm::Fill::kStale);
  EXPECT_EQ(resolve(budget.spec, "again").run_id, budget.run_id);
  EXPECT_FALSE(
      resolved(kTwoRanks, {kTime, "/time/compute_milliseconds=measured"}).config.time->compute_seconds.has_value());
}

TEST(Resolve, ProcessesTakeThePacketTimeOfTheLinks) {
  const ResolvedRun run = resolved(
      kTwoRanks, {kTime, "/time/header_bytes=92", "/network/payload_bytes=408",
                  R"(/network/loss={"model": "schedule", "phases": [{"from_step": 0, "loss": {"model": "none"}}, )"
                  R"({"from_step": 5, "loss": {"model": "timed_gilbert_elliott", "mean_good_microseconds": 90, )"
                  R"("mean_bad_microseconds": 10}}]})"});
  const sim::LossProcess& process = run.config.network.of(sim::TrafficClass::kTpForward)->reduce.loss->at_step(5);
  // 500 bytes at 12.5 GB/s.
  EXPECT_THAT(process.describe(), ::testing::HasSubstr("packet_microseconds=0.04"));
  const nlohmann::json& timed = run.spec["network"]["classes"]["tp_forward"]["reduce"]["loss"]["phases"][1]["loss"];
  EXPECT_FALSE(timed.contains("packet_microseconds"));
  EXPECT_EQ(timed["tick_microseconds"], 0.01) << "a thousandth of the shorter stay";
  EXPECT_EQ(resolve(run.spec, "again").run_id, run.run_id);
}

TEST(Resolve, MessagesThatWouldNeverGetAcrossAreRefused) {
  const char* const restart = R"(/time/retransmission={"protocol": "go_back_0"})";
  const auto error = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {kTime, restart, "/model/width=128", "/training/sequence_tokens=64"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return config_error_of([&] { resolved(kTwoRanks, all); });
  };
  // 8 sequences of 64 tokens, 128 wide, cut into two parts: 32768 floats in 94 packets.
  EXPECT_EQ(error({}), "(no error)");
  EXPECT_THAT(
      error({"/network/loss/loss_rate=0.08"}),
      ::testing::HasSubstr("s.json: /time/retransmission: got \"go_back_0\", which in tp_forward takes 2.53e+03 "
                           "tries on average for messages of up to 94 packets under "
                           "bernoulli(loss_rate=0.08); want at most 1e+03: a lower loss rate"));
  EXPECT_THAT(error({"/training/batch_sequences=16"}), ::testing::HasSubstr("messages of up to 187 packets"));
  EXPECT_THAT(error({"/training/batch_sequences=16", "/training/precision=bfloat16"}),
              ::testing::HasSubstr("messages of up to 187 packets"));
  EXPECT_EQ(error({"/training/batch_sequences=16", "/training/precision/message=bfloat16"}), "(no error)");
  EXPECT_EQ(error({"/training/batch_sequences=16", "/time/retransmission/protocol=selective_repeat"}), "(no error)");
  EXPECT_THAT(error({"/time/retransmission/protocol=selective_repeat", "/network/loss/loss_rate=0.9999"}),
              ::testing::HasSubstr("takes 1e+04 tries on average"));
}

TEST(Resolve, TimeErrorsNameTheirPlace) {
  const auto error = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {kTime};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return config_error_of([&] { resolved(kTwoRanks, all); });
  };
  EXPECT_THAT(error({"/time/link/latency_microseconds=-1"}),
              ::testing::HasSubstr("/time/link/latency_microseconds: got -1"));
  EXPECT_THAT(error({"/time/link=null"}), ::testing::HasSubstr("/time"));
  EXPECT_THAT(
      error({"/time/retransmission/protocol=tcp"}),
      ::testing::HasSubstr("/time/retransmission/protocol: got \"tcp\", want one of \"none\", \"selective_repeat\""));
  EXPECT_THAT(error({"/time/compute_milliseconds=fast"}),
              ::testing::HasSubstr("want milliseconds, at least 0, or \"measured\""));
  EXPECT_THAT(error({R"(/time/retransmission={"protocol": "go_back_n"})", "/time/deadline_microseconds=5"}),
              ::testing::HasSubstr("s.json: /time/deadline_microseconds: got 5.0, but \"go_back_n\" sends lost"));
  EXPECT_THAT(error({R"(/time/retransmission={"protocol": "go_back_n"})", "/network/loss/loss_rate=1"}),
              ::testing::HasSubstr("tp_forward loses every packet"));
  const char* const repeats = R"(/time/retransmission={"protocol": "selective_repeat"})";
  EXPECT_THAT(error({repeats, R"(/network/loss={"model": "outage", "windows": [{"from_step": 3, "to_step": 4}]})"}),
              ::testing::HasSubstr("tp_forward loses every packet of a link in some step"));
  EXPECT_THAT(error({repeats, R"(/network/links=[{"sources": [0], "loss": {"model": "bernoulli", "loss_rate": 1}}])"}),
              ::testing::HasSubstr("tp_forward loses every packet of a link in some step"));
  const char* const timed =
      R"(/network/loss={"model": "timed_gilbert_elliott", "mean_good_microseconds": 90, "mean_bad_microseconds": 10,)"
      R"( "loss_bad": 1})";
  EXPECT_EQ(error({timed}), "(no error)");
  EXPECT_THAT(error({timed, "/network/loss/packet_microseconds=0.5"}),
              ::testing::HasSubstr("s.json: /network/loss/packet_microseconds: got 0.5 with a time section, which"));
  EXPECT_THAT(error({timed, "/time=null"}),
              ::testing::HasSubstr("s.json: /network/loss/packet_microseconds: is missing; want the time of a packet"));
  EXPECT_THAT(error({timed, "/network/loss/tick_microseconds=1e-6"}),
              ::testing::HasSubstr("tick_microseconds: got 1e-06, want at least a millionth of the shorter mean stay"));
  EXPECT_THAT(
      error({timed, "/network/loss/tick_microseconds=1", "/network/burst_scope=message"}),
      ::testing::HasSubstr("/network/loss/tick_microseconds: got 1.0 with burst_scope \"message\", where time "));
  EXPECT_THAT(error({timed, "/network/loss/tick_microseconds=1", "/network/loss/packet_microseconds=1", "/time=null"}),
              ::testing::HasSubstr("/network/loss/tick_microseconds: got 1.0 without a time section, so that states"));
  EXPECT_THAT(error({timed, "/time/compute_milliseconds=measured"}),
              ::testing::HasSubstr("s.json: /time/compute_milliseconds: got \"measured\" with a loss process whose"));
  EXPECT_THAT(error({"/time/compute_milliseconds=measured", "/time/deadline_microseconds=5"}),
              ::testing::HasSubstr("s.json: /time/compute_milliseconds: got \"measured\" with "
                                   "/time/deadline_microseconds, so that which packets are late"));
  EXPECT_EQ(error({"/network/fill=inverse_probability"}), "(no error)");
  EXPECT_THAT(error({"/network/fill=inverse_probability", "/time/deadline_microseconds=5"}),
              ::testing::AllOf(::testing::HasSubstr("s.json: /time/deadline_microseconds: got a deadline with the "
                                                    "fill inverse_probability of tp_forward"),
                               ::testing::HasSubstr("want no deadline, or the fill zero")));
  const char* const parity = R"(/network/recovery={"parity": {"data": 4, "parity": 1}})";
  EXPECT_EQ(error({parity}), "(no error)");
  EXPECT_THAT(
      error({parity, "/time/deadline_microseconds=5"}),
      ::testing::AllOf(::testing::HasSubstr("s.json: /time/deadline_microseconds: got a deadline, but links of tp_"),
                       ::testing::HasSubstr("does not know the late packets")));
  EXPECT_THAT(error({parity, R"(/time/retransmission={"protocol": "go_back_n"})"}),
              ::testing::HasSubstr("want one of the two"));
  const char* const one_round = R"(/network/recovery={"retransmit": {"protocol": "selective_repeat", "rounds": 1}})";
  EXPECT_EQ(error({one_round}), "(no error)");
  EXPECT_THAT(
      error({one_round, repeats}),
      ::testing::AllOf(::testing::HasSubstr("s.json: /time/retransmission: got \"selective_repeat\", which sends"),
                       ::testing::HasSubstr("selective_repeat(rounds=1) in the network section; want one")));
  EXPECT_EQ(error({one_round, "/network/loss/loss_rate=1"}), "(no error)") << "a budget ends everywhere";
  EXPECT_EQ(error({one_round, "/network/fill=inverse_probability"}), "(no error)");
  EXPECT_THAT(error({one_round, "/network/fill=inverse_probability",
                     R"(/network/loss={"model": "gilbert_elliott", "loss_rate": 0.05, "mean_burst_packets": 4})"}),
              ::testing::HasSubstr("s.json: /time: got a clock with the fill inverse_probability"));
}

}  // namespace
}  // namespace droptest::experiments::resolve_time_test
