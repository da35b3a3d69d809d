// SPDX-License-Identifier: Apache-2.0
// Processes and links of a spec: resolved members, the run id, and refused values.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/json/json_text.h"
#include "comm/spec/sha256.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/resolve.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::resolve_losses_test {
namespace {

using nlohmann::json;

json spec_with(const std::string& network_text) {
  const json network = comm::parse_json(network_text, "network");
  return {{"name", "t"}, {"data", {{"text", "a.txt"}}}, {"parallel", {{"tensor", 4}}}, {"network", network}};
}

ResolvedRun resolved(const std::string& network) { return resolve(spec_with(network), "s"); }

std::string error_of(const std::string& network) {
  try {
    (void)resolved(network);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

const json& reduce_of(const ResolvedRun& run) { return run.spec["network"]["classes"]["tp_forward"]["reduce"]; }

void expect_resolves_to_itself(const ResolvedRun& run) {
  EXPECT_TRUE(schema_of(SchemaKind::kResolvedSpec).check(run.spec).empty())
      << schema_of(SchemaKind::kResolvedSpec).check(run.spec)[0].pointer;
  const ResolvedRun again = resolve(run.spec, "r");
  EXPECT_EQ(comm::canonical_json(again.spec), comm::canonical_json(run.spec));
  EXPECT_EQ(again.run_id, run.run_id);
}

TEST(ResolveLosses, ProcessesAreWrittenOut) {
  const ResolvedRun four = resolved(R"({"loss": {"model": "four_state", "p13": "1%", "p32": "20%", "p31": 0.5}})");
  EXPECT_EQ(reduce_of(four)["loss"],
            json({{"model", "four_state"}, {"p13", 0.01}, {"p31", 0.5}, {"p32", 0.2}, {"p23", 1.0}, {"p14", 0.0}}));
  expect_resolves_to_itself(four);
  const ResolvedRun timed = resolved(R"({"loss": {"model": "timed_gilbert_elliott", "mean_good_microseconds": 1000,
                                                  "mean_bad_microseconds": 10, "packet_microseconds": 0.5}})");
  EXPECT_EQ(reduce_of(timed)["loss"]["gap_microseconds"], 0);
  EXPECT_EQ(reduce_of(timed)["loss"]["loss_bad"], 1);
  expect_resolves_to_itself(timed);
  expect_resolves_to_itself(resolved(R"({"loss": {"model": "pattern", "every": 100}})"));
  expect_resolves_to_itself(
      resolved(R"({"loss": {"model": "pattern", "lost_packets": 10, "delivered_packets": 90, "offset": 3}})"));
  const ResolvedRun outage = resolved(R"({"loss": {"model": "outage", "windows": [{"from_step": 5, "to_step": 7}],
                                                   "otherwise": {"model": "bernoulli", "loss_rate": "1%"}}})");
  EXPECT_EQ(reduce_of(outage)["loss"]["otherwise"]["loss_rate"], 0.01);
  EXPECT_EQ(reduce_of(outage)["loss"]["loss_rate"], 1);
  expect_resolves_to_itself(outage);
  const ResolvedRun schedule = resolved(R"({"loss": {"model": "schedule", "phases": [
      {"from_step": 0, "loss": {"model": "none"}},
      {"from_step": 10, "loss": {"model": "gilbert_elliott", "p_good_to_bad": "1%", "p_bad_to_good": 0.5}}]}})");
  EXPECT_EQ(reduce_of(schedule)["loss"]["phases"][1]["loss"]["p_good_to_bad"], 0.01);
  EXPECT_EQ(reduce_of(schedule)["loss"]["phases"][1]["loss"]["loss_bad"], 1);
  expect_resolves_to_itself(schedule);
}

TEST(ResolveLosses, ATraceIsKnownByItsContents) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace.txt";
  std::ofstream(path) << "0001\n";
  const std::string network = R"({"loss": {"model": "trace", "start": "random", "file": ")" + path + "\"}}";
  const ResolvedRun first = resolved(network);
  EXPECT_EQ(reduce_of(first)["loss"]["sha256"], comm::sha256_hex("0001\n"));
  expect_resolves_to_itself(first);
  std::ofstream(path) << "0011\n";
  EXPECT_NE(resolved(network).run_id, first.run_id) << "another trace is another run";
  try {
    (void)resolve(first.spec, "r");
    ADD_FAILURE() << "the trace is not the one that was resolved";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("/reduce/loss/file: " + path + " has SHA-256 "), std::string::npos)
        << error.what();
  }
  std::ofstream(path) << "0011\n02";
  EXPECT_EQ(error_of(network), "s: /network/loss: " + path +
                                   ": line 2, column 2: got '2', want 0 (delivered), 1 (lost), blanks or a comment "
                                   "after #");
  std::filesystem::remove(path);
  EXPECT_EQ(error_of(network), "s: /network/loss/file: read " + path + ": No such file or directory");
}

TEST(ResolveLosses, ATraceInsideAScheduleIsReadToo) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace.txt";
  std::ofstream(path) << "01\n";
  const ResolvedRun run = resolved(R"({"loss": {"model": "schedule", "phases": [{"from_step": 1, "loss": {"model":
      "trace", "file": ")" + path + R"("}}]}})");
  EXPECT_EQ(reduce_of(run)["loss"]["phases"][0]["loss"]["sha256"], comm::sha256_hex("01\n"));
  expect_resolves_to_itself(run);
}

TEST(ResolveLosses, LinksGoToTheHalvesAndClassesThatNameThem) {
  const ResolvedRun run = resolved(R"({
      "links": [{"sources": [1, "2-3"], "loss": {"model": "bernoulli", "loss_rate": "5%"}}],
      "gather": {"links": [{"between_groups_of": 2, "loss": {"model": "bernoulli", "loss_rate": 0.2}}]},
      "classes": {"tp_backward": {"links": []}}})");
  const json& forward = run.spec["network"]["classes"]["tp_forward"];
  EXPECT_EQ(forward["reduce"]["links"][0]["loss"]["loss_rate"], 0.05);
  EXPECT_EQ(forward["gather"]["links"][0]["between_groups_of"], 2);
  EXPECT_FALSE(run.spec["network"]["classes"].contains("tp_backward")) << "without its links it is reliable";
  const comm::ClassNetwork& network = *run.config.network.of(sim::TrafficClass::kTpForward);
  ASSERT_EQ(network.reduce.links.size(), 1U);
  EXPECT_EQ(network.reduce.links[0].sources.ranges[0].first, 1);
  EXPECT_EQ(network.reduce.links[0].sources.ranges[1].first, 2);
  EXPECT_EQ(network.reduce.links[0].sources.ranges[1].second, 3);
  EXPECT_EQ(network.gather.links[0].groups, comm::LinkOverride::Groups::kBetween);
  EXPECT_EQ(network.gather.links[0].group_ranks, 2);
  EXPECT_EQ(network.gather.links[0].loss->loss_rate(), 0.2);
  expect_resolves_to_itself(run);
}

TEST(ResolveLosses, OnContributionTheLinksAreTheReduceHalfs) {
  const ResolvedRun run = resolved(R"({"path": "contribution",
      "links": [{"sources": [1], "loss": {"model": "bernoulli", "loss_rate": "5%"}}]})");
  const comm::ClassNetwork& network = *run.config.network.of(sim::TrafficClass::kTpForward);
  EXPECT_EQ(network.reduce.links.size(), 1U);
  EXPECT_TRUE(network.gather.links.empty());
  expect_resolves_to_itself(run);
}

TEST(ResolveLosses, LinksThatSayNothingAreNotThere) {
  EXPECT_EQ(resolved(R"({"links": [{"sources": [1], "loss": {"model": "none"}}]})").run_id, resolved("{}").run_id);
  EXPECT_EQ(resolved(R"({"links": [], "loss": {"model": "bernoulli", "loss_rate": 0.1}})").run_id,
            resolved(R"({"loss": {"model": "bernoulli", "loss_rate": 0.1}})").run_id);
}

TEST(ResolveLosses, WrongLinksAreErrorsWithTheirPlace) {
  const auto with = [](const std::string& conditions) {
    return error_of(R"({"links": [{"loss": {"model": "bernoulli", "loss_rate": 0.1}, )" + conditions + "}]}");
  };
  EXPECT_EQ(with(R"("sources": [0, 4])"), "s: /network/links/0/sources/1: got 4, want ranks from 0 to 3");
  EXPECT_EQ(with(R"("destinations": ["3-1"])"),
            "s: /network/links/0/destinations/0: got \"3-1\", want ranks from 0 to 3, the first of a range not above "
            "the last");
  EXPECT_EQ(with(R"("between_groups_of": 2, "within_groups_of": 2)"),
            "s: /network/links/0: got both between_groups_of and within_groups_of, want one of them");
  EXPECT_NE(with(R"("sources": ["x"])").find("/network/links/0/sources/0: got \"x\", want a world rank, or a range"),
            std::string::npos)
      << with(R"("sources": ["x"])");
  const std::string shared = error_of(R"({"path": "contribution", "links": [{"destinations": [1],
      "loss": {"model": "bernoulli", "loss_rate": 0.1}}]})");
  EXPECT_NE(shared.find("links/0 of the reduce half: got destinations, ranks or groups"), std::string::npos) << shared;
  EXPECT_NE(error_of(R"({"loss": {"model": "four_state", "p13": 0.1, "p31": 0.6, "p32": 0.6}})")
                .find("s: /network/loss: four_state: p31 + p32: got 1.2"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"loss": {"model": "schedule", "phases": [{"from_step": 0, "loss": {"model": "bernoulli",
      "loss_rate": "200%"}}]}})")
                .find("s: /network/loss/phases/0/loss/loss_rate: got \"200%\""),
            std::string::npos);
}

}  // namespace
}  // namespace droptest::experiments::resolve_losses_test
