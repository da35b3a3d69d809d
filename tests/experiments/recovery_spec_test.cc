// SPDX-License-Identifier: Apache-2.0
// The recovery of a network in specs: resolved members, overrides, and errors with their pointers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/spec/resolve.h"
#include "experiments/spec/spec.h"
#include "sim/error.h"

namespace droptest::experiments::recovery_spec_test {
namespace {

using comm::canonical_json;
using nlohmann::json;
using testing::HasSubstr;

const char* const kBase = R"({"name": "t", "data": {"text": "a.txt"}, "parallel": {"tensor": 2},
    "network": {"loss": {"model": "bernoulli", "loss_rate": "5%"}}})";

ResolvedRun resolved(const std::vector<std::string>& overrides) {
  json document = comm::parse_json(kBase, "s");
  for (const std::string& assignment : overrides) apply_override(document, assignment);
  return resolve(document, "s.json");
}

json forward_of(const std::vector<std::string>& overrides) {
  return resolved(overrides).spec["network"]["classes"]["tp_forward"];
}

std::string error_of(const std::vector<std::string>& overrides) {
  try {
    resolved(overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(RecoverySpec, IsSpelledOutByHalfAndInTypes) {
  const ResolvedRun run = resolved({R"(/network/recovery={"parity": {"data": 8, "parity": 2},
      "retransmit": {"protocol": "selective_repeat", "rounds": 3}, "interleave": 4, "hadamard": {},
      "error_feedback": true, "protect": {"layers": [0], "steps": {"until": 10}, "names": ["h.0.*"]}})"});
  const json forward = run.spec["network"]["classes"]["tp_forward"];
  EXPECT_EQ(canonical_json(forward["recovery"]),
            R"({"error_feedback":true,"hadamard":{"block":1024},"interleave":4,)"
            R"("protect":{"layers":[0],"names":["h.0.*"],"steps":{"from":0,"until":10}}})");
  for (const char* half : {"reduce", "gather"}) {
    EXPECT_EQ(canonical_json(forward[half]["recovery"]),
              R"({"parity":{"data":8,"parity":2},"retransmit":{"protocol":"selective_repeat","rounds":3}})");
  }
  const comm::ClassNetwork& network = *run.config.network.of(sim::TrafficClass::kTpForward);
  EXPECT_EQ(network.reduce.recovery->describe(), "parity(data=8, parity=2) + selective_repeat(rounds=3)");
  EXPECT_EQ(network.gather.recovery->describe(), network.reduce.recovery->describe());
  EXPECT_EQ(network.recovery.interleave_packets, 4U);
  EXPECT_EQ(network.recovery.hadamard_block_elems, 1024U);
  EXPECT_EQ(network.recovery.error_feedback, comm::ClassRecovery::ErrorFeedback::kOn);
  EXPECT_EQ(network.recovery.protect.layers, std::vector<int>{0});
  EXPECT_EQ(network.recovery.protect.steps->until, 10U);
  EXPECT_EQ(network.recovery.protect.names, std::vector<std::string>{"h.0.*"});
  const ResolvedRun again = resolve(run.spec, "spec.json");
  EXPECT_EQ(canonical_json(again.spec), canonical_json(run.spec)) << "a resolved spec resolves to itself";
  EXPECT_EQ(again.run_id, run.run_id);
  EXPECT_EQ(forward_of({R"(/network/recovery={"retransmit": {"protocol": "go_back_n"}})"})["reduce"]["recovery"],
            json::parse(R"({"retransmit": {"protocol": "go_back_n"}})"));
}

/// The number after the words "of at most ".
std::string bytes_wanted(const std::string& message) {
  const std::string words = "of at most ";
  const std::size_t begin = message.find(words) + words.size();
  return message.substr(begin, message.find(',', begin) - begin);
}

// Issue: protect.layers had no effect on gradients whose buckets have several blocks, and nothing said so.
TEST(RecoverySpec, ProtectedLayersWithoutABucketAreWarnedOf) {
  const std::string layers = R"({"protect": {"layers": [1, 0]}})";
  const std::vector<std::string> base = {R"(/parallel={"data": 2})", "/model/layers=4", "/model/width=64",
                                         "/model/heads=4"};
  const auto warnings = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), base.begin(), base.end());
    return resolved(overrides).warnings;
  };
  for (const std::string pointer : {"/network/recovery", "/network/classes/dp_gradient/recovery"}) {
    std::vector<std::string> overrides = {pointer + "=" + layers};
    const std::vector<Warning> found = warnings(overrides);
    ASSERT_EQ(found.size(), 1U) << pointer;
    EXPECT_EQ(found[0].pointer, pointer + "/protect/layers");
    EXPECT_THAT(found[0].message, HasSubstr("no message of dp_gradient belongs to layer "));
    EXPECT_THAT(found[0].message, HasSubstr("/parallel/zero 2 or 3"));
    const std::string bytes = bytes_wanted(found[0].message);
    overrides.push_back("/parallel/bucket_bytes=" + bytes);
    overrides.push_back("/parallel/first_bucket_bytes=" + bytes);
    EXPECT_TRUE(warnings(overrides).empty()) << bytes;
    EXPECT_TRUE(warnings({pointer + "=" + layers, "/parallel/zero=2"}).empty());
  }
  // Parameters travel in the same buckets.
  EXPECT_EQ(warnings({"/network/recovery=" + layers, "/parallel/zero=1"}).size(), 2U);
  // Sums of activations belong to their blocks, and other protections to no layer.
  EXPECT_TRUE(resolved({"/network/recovery=" + layers}).warnings.empty());
  EXPECT_TRUE(warnings({R"(/network/recovery={"protect": {"names": ["gradients.0"]}})"}).empty());
}

TEST(RecoverySpec, WhatChangesNothingIsAbsent) {
  const std::string plain = resolved({}).run_id;
  for (const char* nothing : {"{}", R"({"interleave": 1})", R"({"error_feedback": false})", R"({"protect": {}})",
                              R"({"protect": {"layers": [], "names": [], "steps": {"from": 5, "until": 5}}})"}) {
    EXPECT_EQ(resolved({std::string("/network/recovery=") + nothing}).run_id, plain) << nothing;
  }
  EXPECT_FALSE(forward_of({}).contains("recovery"));
  EXPECT_FALSE(forward_of({})["reduce"].contains("recovery"));
  // A half that loses nothing has nothing to recover.
  const json reduce_only = forward_of(
      {R"(/network/recovery={"parity": {"data": 4, "parity": 1}})", R"(/network/gather/loss={"model": "none"})"});
  EXPECT_TRUE(reduce_only["reduce"].contains("recovery"));
  EXPECT_FALSE(reduce_only["gather"].contains("recovery"));
  EXPECT_FALSE(
      forward_of({R"(/network/recovery={"error_feedback": true})", R"(/network/reduce/loss={"model": "none"})"})
          .contains("recovery"));
}

TEST(RecoverySpec, AHalfAndAClassOverride) {
  const std::string parity = R"({"parity": {"data": 4, "parity": 1}})";
  const json half = forward_of({"/network/recovery=" + parity, "/network/gather/recovery={}"});
  EXPECT_TRUE(half["reduce"].contains("recovery"));
  EXPECT_FALSE(half["gather"].contains("recovery"));
  const json classes = resolved({"/network/recovery=" + parity, "/network/gather/recovery={}",
                                 R"(/network/classes/tp_forward/recovery={"interleave": 2})",
                                 R"(/network/classes/tp_forward/gather/recovery={"retransmit":
                                     {"protocol": "selective_repeat"}})"})
                           .spec["network"]["classes"];
  EXPECT_EQ(classes["tp_forward"]["recovery"]["interleave"], 2);
  EXPECT_FALSE(classes["tp_forward"]["reduce"].contains("recovery")) << "a section's recovery is all of it";
  EXPECT_TRUE(classes["tp_forward"]["gather"]["recovery"].contains("retransmit"));
  EXPECT_TRUE(classes["tp_backward"]["reduce"]["recovery"].contains("parity"));
}

TEST(RecoverySpec, ErrorsNameTheirPlace) {
  EXPECT_EQ(error_of({R"(/network/recovery={"hadamard": {"block": 1000}})"}),
            "s.json: /network/recovery/hadamard/block: got 1000, want a power of two in [2, 16777216]");
  EXPECT_THAT(error_of({R"(/network/recovery={"parity": {"data": 200, "parity": 100}})"}),
              HasSubstr("s.json: /network/recovery/parity: data + parity: got 300, want at most 255"));
  EXPECT_THAT(error_of({R"(/network/reduce/recovery={"parity": {"data": 4, "parity": 1},
                            "retransmit": {"protocol": "go_back_n"}})"}),
              HasSubstr("s.json: /network/reduce/recovery/retransmit/protocol: got \"go_back_n\", want "
                        "selective_repeat with parity"));
  EXPECT_THAT(error_of({R"(/network/recovery={"error_feedback": true})", "/network/fill=stale"}),
              HasSubstr("s.json: /network/recovery/error_feedback: got true with the fill stale"));
  EXPECT_THAT(error_of({R"(/network/classes/tp_backward/recovery={"retransmit": {"protocol": "selective_repeat"}})",
                        R"(/network/classes/tp_backward/loss={"model": "bernoulli", "loss_rate": 1})"}),
              HasSubstr("s.json: /network/classes/tp_backward/recovery/retransmit: got no budget of rounds"));
  const std::string time = R"(/time={"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 100}})";
  EXPECT_EQ(error_of({R"(/network/recovery={"parity": {"data": 4, "parity": 1}})", time}), "");
  EXPECT_EQ(error_of({R"(/network/recovery={"retransmit": {"protocol": "selective_repeat"}})", time}), "");
  EXPECT_THAT(error_of({R"(/network/recovery={"retransmit": {"protocol": "none"}})"}),
              HasSubstr("/network/recovery/retransmit/protocol: got \"none\", want one of selective_repeat"));
  EXPECT_THAT(
      error_of(
          {R"(/network/recovery={"retransmit": {"protocol": "selective_repeat"}})", "/network/loss/loss_rate=0.9999"}),
      HasSubstr("s.json: /network/recovery/retransmit: got no budget of rounds, which in tp_forward takes 1e+04"));
  EXPECT_EQ(error_of({R"(/network/recovery={"hadamard": {"block": 64}})", time}), "");
  EXPECT_THAT(error_of({R"(/network/gather/recovery={"hadamard": {"block": 64}})"}),
              HasSubstr("/network/gather/recovery/hadamard"));
  EXPECT_THAT(error_of({R"(/network/recovery={"parity": {"data": 8}})"}), HasSubstr("/network/recovery/parity/parity"));
  EXPECT_THAT(error_of({R"(/network/recovery={"retransmit": {"protocol": "hope"}})"}),
              HasSubstr("/network/recovery/retransmit/protocol"));
}

}  // namespace
}  // namespace droptest::experiments::recovery_spec_test
