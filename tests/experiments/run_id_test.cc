// SPDX-License-Identifier: Apache-2.0
// What the id of a run depends on; test_run_id.py computes ids from resolved specs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/resolve.h"
#include "experiments/spec/run_id.h"
#include "sim/error.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::run_id_test {
namespace {

using nlohmann::json;

TEST(RunId, IsStable) {
  // Golden: a change of it makes every recorded run a stranger; tests/experiments/test_run_id.py computes it with
  // Python's hashlib from the resolved spec.
  const std::string hash = "0123456789abcdef";
  EXPECT_EQ(id_with({"/data/sha256=" + hash + hash + hash + hash}), "fdabe14bdb030925");
}

TEST(RunId, DoesNotDependOnOrderSpellingOrWhatChangesNoResult) {
  const std::string base = id_with({});
  EXPECT_EQ(resolved(R"({"network": {"loss": {"loss_rate": 5.0e-2, "model": "bernoulli"}}, "parallel": {"tensor": 2.0},
                         "data": {"text": "a.txt"}, "name": "t"})")
                .run_id,
            base);
  for (const char* same : {"/name=other",
                           "/description=words",
                           R"(/alerts=[{"when":"any","do":"stop"}])",
                           "/record/every_steps=1",
                           "/record/sample_every_steps=7",
                           "/record/links=include",
                           "/record/weights=none",
                           "/memory=basic",
                           R"(/memory={"strategy":"extreme","cut":false})",
                           R"(/memory={"recompute":"full","every":2})",
                           R"(/memory={"offload_optimizer":true,"offload_parameters":true})",
                           "/backend/timeout_seconds=5",
                           "/backend/threads_per_rank=2",
                           R"(/backend/rendezvous={"kind":"redis"})",
                           R"(/backend/rendezvous={"kind":"tcp"})",
                           "/seed=1",
                           "/model/preset=nano",
                           "/model/width=128",
                           "/training/sequence_tokens=128",
                           "/training/final_learning_rate=0.0001",
                           "/training/precision=float32",
                           "/training/precision={}",
                           R"(/training/precision={"message":"float32","compute":"float32"})",
                           "/device=cpu",
                           "/training/steps=3e2",
                           "/network/path=direct",
                           "/network/fill=zero",
                           "/data/format=uint16",
                           "/repeat={\"seeds\":1}"}) {
    EXPECT_EQ(id_with({same}), base) << same;
  }
  const std::string sent = R"(/memory={"recompute":"full","recompute_traffic":"sent"})";
  EXPECT_NE(id_with({sent}), base) << "its packets are counted";
  const std::string chunks = id_with({R"(/memory={"attention_chunk":32})"});
  EXPECT_NE(chunks, base) << "its sums are rounded in another order";
  EXPECT_NE(chunks, id_with({R"(/memory={"attention_chunk":33})"}));
  EXPECT_EQ(chunks, id_with({R"(/memory={"attention_chunk":32,"recompute":"full","directory":"/scratch"})"}));
  EXPECT_EQ(id_with({sent, "/network={}"}), id_with({"/network={}"})) << "no packet and no time is counted";
}

std::map<std::string, json> words_of_identity() {
  std::map<std::string, json> words = schema_of(SchemaKind::kSpec).annotations("x-identity");
  words.merge(schema_of(SchemaKind::kCommandSpec).annotations("x-identity"));
  return words;
}

std::string id_with_member(json spec, const std::string& pointer, const json& value) {
  spec[json::json_pointer(pointer)] = value;
  return run_id_of(spec);
}

// Each member gets some content, so that none is left out only because no spec of a test has it.
TEST(RunId, LeavesOutTheMembersThatTheSchemaSays) {
  const json spec = resolved(kTwoRanks).spec;
  const std::set<std::string> left_out = {"none", "implied"};
  std::set<std::string> with_none;
  for (const auto& [pointer, word] : words_of_identity()) {
    const bool is_left_out = left_out.contains(word);
    EXPECT_EQ(id_with_member(spec, pointer, "one") == id_with_member(spec, pointer, "another"), is_left_out) << pointer;
    EXPECT_EQ(changes_results(pointer), word != "none") << pointer;
    if (!is_left_out) continue;
    EXPECT_EQ(id_with_member(spec, pointer, "one"), run_id_of(spec)) << pointer;
    EXPECT_EQ(id_with_member(spec, pointer, {{"a", {1, 2}}}), run_id_of(spec)) << pointer;
    if (word == "none") with_none.insert(pointer);
  }
  EXPECT_EQ(with_none,
            (std::set<std::string>{"/name", "/description", "/unit", "/record", "/backend/timeout_seconds",
                                   "/backend/threads_per_rank", "/backend/rendezvous", "/data/lost_limit",
                                   "/data/retries", "/checkpoint", "/restart", "/elastic", "/memory", "/alerts"}));
}

TEST(RunId, DependsOnEachMemberWithoutAWord) {
  const json spec = resolved(kTwoRanks).spec;
  const std::map<std::string, json> words = words_of_identity();
  int members = 0;
  const auto expect_part = [&](const std::string& pointer) {
    if (words.contains(pointer)) return;
    ++members;
    EXPECT_NE(id_with_member(spec, pointer, "one"), id_with_member(spec, pointer, "another")) << pointer;
    EXPECT_TRUE(changes_results(pointer)) << pointer;
  };
  for (const SchemaKind kind : {SchemaKind::kSpec, SchemaKind::kCommandSpec}) {
    for (const auto& [name, section] : schema_of(kind).source()["properties"].items()) {
      expect_part("/" + name);
      if (words.contains("/" + name)) continue;
      const json of_section = section.value("properties", json::object());
      for (const auto& [inner, member] : of_section.items()) {
        expect_part("/" + name + "/" + inner);
      }
    }
  }
  EXPECT_GT(members, 100);
  EXPECT_NE(id_with_member(spec, "/elastics", "one"), run_id_of(spec)) << "members of other programs count";
}

TEST(RunId, DependsOnEverythingElse) {
  std::set<std::string> ids = {id_with({})};
  const std::vector<std::string> changes = {"/seed=2",
                                            "/model/preset=micro",
                                            "/model/layers=5",
                                            "/model/width=256",
                                            "/model/heads=2",
                                            "/model/context=129",
                                            "/model/vocabulary=257",
                                            "/model/weights=w",
                                            "/data/text=b.txt",
                                            "/data/validation_fraction=0.2",
                                            "/parallel/tensor=4",
                                            "/device=cuda",
                                            "/backend/name=gloo",
                                            "/network/path=contribution",
                                            "/network/payload_bytes=1400",
                                            "/network/consistency=shared",
                                            "/network/burst_scope=message",
                                            "/network/loss/loss_rate=0.050000000000000003",
                                            "/network/loss/loss_rate=0.05000000000000001",
                                            "/network/fill=stale",
                                            "/network/reduce/fill=stale",
                                            "/network/gather/fill=stale",
                                            "/network/gather/loss={\"model\":\"none\"}",
                                            "/network/classes/tp_forward/loss={\"model\":\"none\"}",
                                            "/training/steps=301",
                                            "/training/batch_sequences=9",
                                            "/training/sequence_tokens=127",
                                            "/training/accumulation=2",
                                            "/training/precision=bfloat16",
                                            "/training/precision/message=bfloat16",
                                            R"(/training/precision={"compute":"bfloat16","message":"bfloat16"})",
                                            "/training/learning_rate=0.002",
                                            "/training/final_learning_rate=0",
                                            "/training/warmup_steps=1",
                                            "/training/weight_decay=0",
                                            "/training/beta1=0.8",
                                            "/training/beta2=0.9",
                                            "/training/epsilon=1e-7",
                                            "/training/gradient_clip=2",
                                            "/validation/every_steps=49",
                                            "/validation/tokens=65537",
                                            "/validation/network=lossy"};
  std::size_t equal = 0;
  for (const std::string& change : changes) equal += ids.insert(id_with({change})).second ? 0 : 1;
  EXPECT_EQ(equal, 1U) << "only 0.050000000000000003 is the same double as 0.05";
  EXPECT_NE(id_with({"/data/text=null", "/data/tokens=a.txt"}), id_with({}));
}

TEST(RunId, SaysWhatItLeavesOut) {
  EXPECT_FALSE(changes_results("/record/links"));
  EXPECT_FALSE(changes_results("/record"));
  EXPECT_TRUE(changes_results("/recording"));
  EXPECT_TRUE(changes_results("/backend"));
  EXPECT_TRUE(changes_results("/backend/name"));
  EXPECT_FALSE(changes_results("/backend/threads_per_rank"));
  EXPECT_TRUE(changes_results("/network/loss"));
  EXPECT_FALSE(changes_results("/memory", "extreme"));
  EXPECT_FALSE(changes_results("/memory", {{"strategy", "extreme"}, {"cut", false}}));
  EXPECT_TRUE(changes_results("/memory", {{"strategy", "extreme"}, {"attention_chunk", 64}}));
  EXPECT_THROW(changes_results("record"), CheckError);
}

std::vector<std::string> omits_with(const std::vector<std::string>& overrides) {
  return twin_omits(resolved(kTwoRanks, overrides).spec);
}

/// The spec as a twin is compared: without these pointers, and without objects that have no other members.
nlohmann::json compared(nlohmann::json spec) {
  for (const std::string& pointer : twin_omits(spec)) {
    for (json::json_pointer at(pointer); !at.empty(); at.pop_back()) {
      if (!spec.contains(at)) continue;
      if (at.to_string() != pointer && !spec.at(at).empty()) break;
      spec.at(at.parent_pointer()).erase(at.back());
    }
  }
  return spec;
}

nlohmann::json compared_with(const std::vector<std::string>& overrides) {
  return compared(resolved(kTwoRanks, overrides).spec);
}

TEST(TwinOmits, ATwinDiffersInTheNetworkAndInWhatChangesNoResult) {
  const nlohmann::json base = compared_with({});
  const std::string hash = "/data/sha256=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  const std::string clock = R"(/time={"link":{"latency_microseconds":1,"bandwidth_gbit_per_second":1},
      "compute_milliseconds":1,"deadline_microseconds":100})";
  for (const char* same :
       {"/network=null", "/network/loss/loss_rate=0.2", "/network/path=ring", "/seeds/network=7", "/name=other",
        "/record/links=include", "/checkpoint/every_steps=5", R"(/memory={"strategy":"extreme","cut":false})",
        "/validation/network=lossy", R"(/alerts=[{"when":"any","do":"stop"}])", "/backend/timeout_seconds=5"}) {
    EXPECT_EQ(compared_with({same}), base) << same;
  }
  EXPECT_EQ(resolved(kTwoRanks, {clock}).spec.at("numerics_version"), 2);
  EXPECT_EQ(compared_with({clock}), base) << "the version follows from the network and the clock";
  EXPECT_EQ(compared_with({hash}), compared_with({hash, "/data/text=moved/a.txt"})) << "a file counts by its content";
  for (const char* other : {"/training/steps=7", "/seeds/weights=7", "/seeds/data=7", "/data/text=b.txt",
                            "/backend/name=gloo", "/parallel/tensor=4", R"(/memory={"attention_chunk":32})"}) {
    EXPECT_NE(compared_with({other}), base) << other;
  }
  EXPECT_EQ(compared_with({R"(/memory={"attention_chunk":32,"recompute":"full"})"}),
            compared_with({R"(/memory={"attention_chunk":32})"}));
}

TEST(TwinOmits, ARunThatCompressesKeepsTheNetworkOfItsCompression) {
  const std::vector<std::string> ranks = {"/parallel/data=2", "/network/fill=zero"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), ranks.begin(), ranks.end());
    return compared_with(more);
  };
  const std::string compressed = R"(/network/classes/dp_gradient/compression={"kind":"int4"})";
  const std::string none = R"(/network/loss={"model":"none"})";
  EXPECT_EQ(with({compressed}), with({compressed, none})) << "the losses of every class are left out";
  EXPECT_EQ(with({compressed}), with({compressed, "/network/burst_scope=message"}));
  EXPECT_NE(with({compressed}), with({}));
  EXPECT_NE(with({compressed}), with({R"(/network/classes/dp_gradient/compression={"kind":"int8"})"}));
  EXPECT_NE(with({compressed}), with({compressed, R"(/network/classes/dp_gradient/recovery={"error_feedback":true})"}));
  EXPECT_NE(with({compressed}), with({compressed, "/seeds/network=7"})) << "it starts the factors of power_sgd";
}

TEST(TwinOmits, AreThePointersThatTheSchemaSays) {
  EXPECT_THAT(
      omits_with({R"(/memory={"attention_chunk":32,"recompute":"full"})", "/checkpoint/every_steps=5"}),
      testing::UnorderedElementsAreArray(
          {"/name", "/description", "/record", "/backend/timeout_seconds", "/backend/threads_per_rank",
           "/backend/rendezvous", "/checkpoint", "/memory/cut", "/memory/every", "/memory/offload",
           "/memory/offload_optimizer", "/memory/offload_parameters", "/memory/recompute", "/memory/recompute_traffic",
           "/memory/strategy", "/network", "/seeds/network", "/numerics_version", "/validation/network"}));
  const std::string compression = R"(/network/classes/dp_gradient/compression={"kind":"int4"})";
  const std::string protection = R"(/network/classes/dp_gradient/recovery={"protect":{"layers":[0]}})";
  EXPECT_THAT(omits_with({"/parallel/data=2", "/network/fill=zero", compression, protection}),
              testing::UnorderedElementsAreArray(
                  {"/name", "/description", "/record", "/backend/timeout_seconds", "/backend/threads_per_rank",
                   "/backend/rendezvous", "/network/classes/dp_gradient/reduce", "/network/classes/dp_gradient/gather",
                   "/network/classes/dp_gradient/burst_scope", "/network/classes/dp_gradient/recovery/protect",
                   "/network/classes/tp_backward", "/network/classes/tp_forward", "/numerics_version"}));
}

TEST(TwinOmits, NamesOnlyMembersThatTheSpecHas) {
  const std::vector<std::string> omits = omits_with({});
  const nlohmann::json spec = resolved(kTwoRanks).spec;
  for (const std::string& pointer : omits) EXPECT_TRUE(spec.contains(json::json_pointer(pointer))) << pointer;
  EXPECT_EQ(std::set<std::string>(omits.begin(), omits.end()).size(), omits.size());
}

TEST(TwinOmits, OnePatternStandsForTheFilesOfAList) {
  nlohmann::json files = nlohmann::json::array();
  for (int i = 0; i < 2000; ++i) files.push_back({{"file", std::to_string(i)}, {"crc32c", "0"}, {"tokens", i}});
  const std::vector<std::string> patterns = {"/data/manifest", "/data/files/*/file"};
  EXPECT_THAT(twin_omits({{"data", {{"files", files}, {"manifest", "m"}}}}),
              testing::UnorderedElementsAreArray(patterns));
  files[7].erase("crc32c");
  const std::vector<std::string> omits = twin_omits({{"data", {{"files", files}}}});
  EXPECT_EQ(omits.size(), 1999U) << "the name of a file without a checksum counts";
  EXPECT_THAT(omits, testing::Not(testing::Contains("/data/files/7/file")));
}

TEST(TwinOmits, FailuresThatTheNetworkSeedDrawsKeepIt) {
  const std::string pipeline = R"(/parallel={"pipeline":4})";
  const std::string failures = R"(/failures={"stages":{"rate":0.1,"replacement":"mean"}})";
  EXPECT_EQ(compared_with({pipeline}), compared_with({pipeline, "/seeds/network=7"}));
  EXPECT_NE(compared_with({pipeline, failures}), compared_with({pipeline, failures, "/seeds/network=7"}));
}

}  // namespace
}  // namespace droptest::experiments::run_id_test
