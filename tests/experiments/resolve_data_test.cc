// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/json/read_file.h"
#include "comm/spec/sha256.h"
#include "experiments/data/shard_list.h"
#include "experiments/data/shard_manifest.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resolved_spec.h"
#include "tests/experiments/sharded_runs.h"

namespace droptest::experiments::resolve_data_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Shape = models::LearningRateSchedule::Shape;

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// One rank's spec of a text with these overrides.
const char* const kText = R"({"name": "t", "data": {"text": "a.txt"}, "training": {"steps": 100}})";

std::string refused(const std::vector<std::string>& overrides) {
  return refusal([&] { (void)resolved(kText, overrides); });
}

TEST(Schedules, CosineIsTheDefaultAndNoPartOfARun) {
  const ResolvedRun plain = resolved(kText);
  EXPECT_FALSE(plain.spec["training"].contains("schedule"));
  EXPECT_EQ(resolved(kText, {"/training/schedule=cosine"}).run_id, plain.run_id);
  EXPECT_EQ(resolved(kText, {R"(/training/schedule={"kind": "cosine"})"}).run_id, plain.run_id);
  EXPECT_EQ(plain.config.training.learning_rate.shape, Shape::kCosine);
}

TEST(Schedules, ResolveToThemselvesAndHaveIdsOfTheirOwn) {
  std::set<std::string> ids = {resolved(kText).run_id};
  for (const std::string schedule :
       {R"("constant")", R"("linear")", R"("warmup_stable_decay")",
        R"({"kind": "warmup_stable_decay", "decay_steps": 40})",
        R"({"kind": "table", "points": [{"step": 0, "factor": 0.1}, {"step": 50, "factor": 1}]})"}) {
    const ResolvedRun run = resolved(kText, {"/training/schedule=" + schedule});
    EXPECT_TRUE(ids.insert(run.run_id).second) << schedule;
    const ResolvedRun again = resolve(run.spec, "again");
    EXPECT_EQ(again.spec, run.spec) << schedule;
    EXPECT_EQ(again.run_id, run.run_id) << schedule;
  }
}

TEST(Schedules, HaveTheirNumbers) {
  const auto rates = [](const std::vector<std::string>& overrides) {
    return resolved(kText, overrides).config.training.learning_rate;
  };
  EXPECT_EQ(rates({"/training/schedule=constant", "/training/learning_rate=0.5"}).floor, 0.5);
  const auto stable = rates({"/training/schedule=warmup_stable_decay", "/training/warmup_steps=10"});
  EXPECT_EQ(stable.shape, Shape::kWarmupStableDecay);
  EXPECT_EQ(stable.decay_steps, 9U);
  EXPECT_EQ(rates({"/training/schedule=warmup_stable_decay", "/training/steps=3"}).decay_steps, 1U);
  const auto table = rates({R"(/training/schedule={"kind": "table", "points": [{"step": 3, "factor": 0.25}]})"});
  ASSERT_EQ(table.points.size(), 1U);
  EXPECT_EQ(table.points[0].step, 3U);
  EXPECT_EQ(table.floor, 0.25e-3);
}

TEST(Schedules, MembersOfOtherKindsAreRefused) {
  EXPECT_THAT(refused({R"(/training/schedule={"kind": "linear", "decay_steps": 3})"}),
              HasSubstr(R"(/training/schedule/decay_steps: got 3, which "linear" has no use for)"));
  EXPECT_THAT(refused({R"(/training/schedule={"kind": "table"})"}), HasSubstr("want the points of the table"));
  EXPECT_THAT(
      refused(
          {R"(/training/schedule={"kind": "table", "points": [{"step": 3, "factor": 1}, {"step": 3, "factor": 0}]})"}),
      HasSubstr("/training/schedule/points/1/step: got 3, want more than the 3"));
  EXPECT_THAT(refused({R"(/training/schedule={"kind": "table", "points": [{"step": 3, "factor": 1}]})",
                       "/training/warmup_steps=2"}),
              HasSubstr("/training/warmup_steps: got 2, want 0 with a table"));
  EXPECT_THAT(refused({R"(/training/schedule={"kind": "warmup_stable_decay", "decay_steps": 91})",
                       "/training/warmup_steps=10"}),
              HasSubstr("/training/schedule/decay_steps: got 91, want at most the 90 steps"));
  EXPECT_THAT(refused({"/training/schedule=constant", "/training/final_learning_rate=0.1"}),
              HasSubstr(R"(/training/final_learning_rate: got 0.1, but the schedule "constant" ends at 0.001)"));
  EXPECT_THAT(refused({"/training/schedule=sawtooth"}),
              HasSubstr(R"(/training/schedule: got "sawtooth", want cosine, constant, linear,)"));
}

TEST(Shards, TheirMembersAreRefusedForOneFile) {
  for (const char* member :
       {"manifest=\"m\"", "shuffle=false", "lost_limit=0.1", "retries={}", "validation_shards=\"v\""}) {
    EXPECT_THAT(refused({std::string("/data/") + member}), HasSubstr("which /data/shards alone has a use for"))
        << member;
  }
  EXPECT_THAT(refused({"/training/epochs=2"}),
              HasSubstr("/training/epochs: got 2, want it absent, /data/shards or /data/examples"));
  EXPECT_THAT(refused({"/training/drop_last=true"}), HasSubstr("/training/drop_last: got true"));
  EXPECT_THAT(refused({"/data/text=null", "/data/tokens=a", "/data/format=text"}),
              HasSubstr(R"(/data/format: got "text")"));
  EXPECT_THAT(refused({"/data/shards=*"}), HasSubstr("/data"));
}

class ShardFiles : public ::testing::Test {
 protected:
  ShardFiles() { write_three_shards(folder_.path()); }
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }

  ResolvedRun run(const json& changes = json::object()) const {
    json spec = sharded_spec(folder_.path());
    spec.merge_patch(changes);
    return resolved_with_files(spec);
  }
  std::string error(const json& changes) const {
    return refusal([&] { (void)run(changes); });
  }
  /// A manifest of the shards, with changes.
  std::string manifest(const json& changes = json::object()) const {
    json files = json::array();
    for (const auto& [name, bytes] :
         {std::pair("a.bin", 170), std::pair("b.bin", 90), std::pair("c.bin", 58), std::pair("v.val", 400)}) {
      json file = {{"file", name}, {"bytes", bytes}, {"crc32c", "01234567"}};
      file.merge_patch(changes.value(name, json::object()));
      if (file.contains("file")) files.push_back(file);
    }
    write_bytes(at("shards.json"), json{{"schema_version", 1}, {"files", files}}.dump());
    return at("shards.json");
  }

  const TemporaryFolder folder_;
};

TEST_F(ShardFiles, AreFoundSortedAndRecordedWithTheirContent) {
  const ResolvedRun one = run();
  const json& files = one.spec["data"]["files"];
  ASSERT_EQ(files.size(), 3U);
  json second = files[1];
  EXPECT_EQ(second.erase("version"), 1U) << "of the file that was hashed";
  EXPECT_EQ(second, json({{"file", at("b.bin")},
                          {"bytes", 90},
                          {"tokens", 45},
                          {"sha256", comm::sha256_hex(comm::read_file(at("b.bin")))}}));
  EXPECT_EQ(one.spec["data"]["validation_files"][0]["tokens"], 200);
  EXPECT_EQ(one.spec["training"]["steps"], 5);
  EXPECT_EQ(one.config.data.shards->files.size(), 3U);
  // A list of patterns that match a file twice.
  const ResolvedRun listed = run({{"data", {{"shards", {at("c.bin"), at("*.bin"), at("./a.bin")}}}}});
  EXPECT_EQ(listed.spec["data"]["files"], files);
  EXPECT_EQ(listed.run_id, one.run_id) << "files count by their content";
}

TEST_F(ShardFiles, ResolveToThemselvesWithAndWithoutALookAtTheFiles) {
  const ResolvedRun one = run({{"training", {{"epochs", 3}, {"drop_last", true}}}, {"data", {{"shuffle", false}}}});
  EXPECT_EQ(resolved_with_files(one.spec).spec, one.spec);
  std::filesystem::remove_all(folder_.path());
  const ResolvedRun again = resolve(one.spec, "again");
  EXPECT_EQ(again.spec, one.spec);
  EXPECT_EQ(again.run_id, one.run_id);
  EXPECT_EQ(again.config.data.shards->files.at(2).tokens, 29U);
  EXPECT_EQ(again.config.training.last_batch, LastBatch::kDropped);
}

TEST_F(ShardFiles, ARunThatStartsFromACheckpointEndsWithItsData) {
  json other = run().spec;
  other["training"]["accumulation"] = 3;
  EXPECT_THAT(refusal([&] { (void)resolve(other, "s"); }), HasSubstr("/training/steps: got 5, but /training/epochs 1"));
  other["start"] = {{"manifest", "m"}};
  EXPECT_EQ(resolve(other, "s").config.training.steps, 5U);
}

TEST_F(ShardFiles, TheIdIsThatOfTheContentAndOfWhatChangesTraining) {
  const std::string id = run().run_id;
  EXPECT_EQ(run({{"data", {{"lost_limit", 0.5}, {"retries", {{"attempts", 2}, {"backoff_seconds", 3}}}}}}).run_id, id);
  EXPECT_NE(run({{"data", {{"shuffle", false}}}}).run_id, id);
  EXPECT_NE(run({{"training", {{"epochs", 2}}}}).run_id, id);
  EXPECT_NE(run({{"training", {{"epochs", nullptr}, {"steps", 5}}}}).run_id, id) << "the last batch is whole";
  EXPECT_NE(run({{"data", {{"shards", at("[ab].bin")}}}}).run_id, id);
  const TemporaryFolder moved;
  write_three_shards(moved.path());
  EXPECT_EQ(resolved_with_files(sharded_spec(moved.path())).run_id, id);
  write_shard(at("b.bin"), 84, 45);
  EXPECT_NE(run().run_id, id);
}

TEST_F(ShardFiles, AnIdWithAManifestIsThatOfItsChecksums) {
  const std::string one = run({{"data", {{"manifest", manifest()}}}}).run_id;
  EXPECT_NE(one, run().run_id);
  EXPECT_NE(one, run({{"data", {{"manifest", manifest({{"b.bin", {{"crc32c", "11111111"}}}})}}}}).run_id);
  const TemporaryFolder moved;
  write_three_shards(moved.path());
  std::filesystem::copy(manifest(), moved.path() + "/other.json");
  json spec = sharded_spec(moved.path());
  spec["data"]["manifest"] = moved.path() + "/other.json";
  const ResolvedRun elsewhere = resolved_with_files(spec);
  EXPECT_EQ(elsewhere.run_id, one);
  EXPECT_EQ(elsewhere.config.data.shards->files[0].crc32c, 0x01234567U);
  EXPECT_FALSE(elsewhere.spec["data"]["files"][0].contains("sha256"));
}

TEST_F(ShardFiles, ErrorsComeBeforeAnyWorkAndNameThePlace) {
  EXPECT_THAT(
      error({{"data", {{"shards", at("*.none")}}}}),
      HasSubstr("/data/shards: " + at("*.none") + ": no file matches; folder " + folder_.path() + " has 4 entries"));
  EXPECT_THAT(error({{"data", {{"shards", at("no/x")}}}}), HasSubstr("folder " + at("no") + ": No such file"));
  EXPECT_THAT(error({{"data", {{"validation_shards", at("none")}}}}),
              HasSubstr("/data/validation_shards: " + at("none")));
  std::filesystem::create_directory(at("folder.bin"));
  EXPECT_THAT(error(json::object()), HasSubstr("folder.bin: matches " + at("*.bin") + ", but is no regular file"));
  std::filesystem::remove(at("folder.bin"));
  write_bytes(at("d.bin"), "odd");
  EXPECT_THAT(error(json::object()), HasSubstr("d.bin: 3 bytes, want an even number"));
  std::filesystem::remove(at("d.bin"));
  EXPECT_THAT(error({{"data", {{"format", "llmc"}}}}), HasSubstr("a.bin: 170 bytes, want a header of 1024 bytes"));
  EXPECT_THAT(error({{"data", {{"shards", at("*")}}}}), HasSubstr("matches /data/shards, too"));
  EXPECT_THAT(error({{"data", {{"validation_fraction", 0.1}}}}),
              HasSubstr("and /data/validation_shards, want one of the two"));
  EXPECT_THAT(error({{"data", {{"retries", {{"attempts", 7}}}}}}),
              HasSubstr("/data/retries: got pauses of 63.0 s in all, want less than 60.0 s"));
  EXPECT_THAT(
      error({{"training", {{"steps", 6}}}}),
      HasSubstr("/training/steps: got 6, but /training/epochs 1 of 18 samples in global batches of 4 sequences are 5 "
                "steps"));
  EXPECT_THAT(error({{"training", {{"accumulation", 19}, {"drop_last", true}}}}),
              HasSubstr("/training/drop_last: got true with 18 samples in global batches of 19 sequences"));
  EXPECT_THAT(error({{"model", {{"vocabulary", 200}}}, {"data", {{"format", "text"}}}}),
              HasSubstr("/model/vocabulary: got 200, want at least 256"));
  EXPECT_THAT(error({{"data", {{"sha256", std::string(64, '0')}}}}), HasSubstr("/data/sha256"));
  EXPECT_THAT(error({{"data", {{"shards", at("c.bin")}}}, {"model", {{"context", 64}}}}),
              HasSubstr("/data/shards: training data: 29 tokens in 1 shards, want at least 65"));
}

TEST_F(ShardFiles, ValidationIsNoTrainingShardUnderAnotherName) {
  namespace fs = std::filesystem;
  const fs::path other = at("other");
  fs::create_directory(other);
  fs::create_symlink(at("b.bin"), other / "link");
  fs::create_hard_link(at("b.bin"), other / "hard");
  fs::copy_file(at("b.bin"), other / "copy");
  write_shard((other / "own").string(), 90, 45);
  // Checksums of a manifest are equal for files of other contents, too.
  json files = json::array();
  for (const char* name : {"a.bin", "b.bin", "c.bin", "other/link", "other/hard", "other/copy", "other/own"}) {
    files.push_back({{"file", name}, {"bytes", fs::file_size(at(name))}, {"crc32c", "01234567"}});
  }
  write_bytes(at("all.json"), json{{"schema_version", 1}, {"files", files}}.dump());
  const auto error_with = [&](const std::string& file, bool with_manifest) {
    json data = {{"validation_shards", file}};
    if (with_manifest) data["manifest"] = at("all.json");
    return error({{"data", data}, {"validation", {{"tokens", 16}}}});
  };
  for (const bool with_manifest : {false, true}) {
    for (const char* name : {"link", "hard", "copy"}) {
      const std::string file = (other / name).string();
      EXPECT_THAT(error_with(file, with_manifest),
                  HasSubstr("/data/validation_shards: " + file + " has the content of " + at("b.bin")));
    }
    EXPECT_EQ(error_with((other / "own").string(), with_manifest), "no error");
  }
  EXPECT_THAT(error_with(fs::relative(at("a.bin")).string(), false), HasSubstr(" has the content of "));
}

TEST_F(ShardFiles, OtherFilesThanTheListedOnesAreRefused) {
  const ResolvedRun one = run();
  write_shard(at("b.bin"), 80, 45);
  EXPECT_THAT(refusal([&] { (void)resolved_with_files(one.spec); }), HasSubstr("/data/files/1: got {"));
  write_shard(at("d.bin"), 80, 45);
  EXPECT_THAT(refusal([&] { (void)resolved_with_files(one.spec); }),
              HasSubstr("/data/files: got 3 files, but the patterns match 4"));
  json broken = one.spec;
  broken["data"]["files"][0]["tokens"] = 86;
  EXPECT_THAT(refusal([&] { (void)resolve(broken, "s"); }),
              HasSubstr("/data/files/0/tokens: got 86 tokens in 170 bytes"));
}

TEST_F(ShardFiles, AManifestHasToFit) {
  const auto refused_with = [&](const json& changes) { return error({{"data", {{"manifest", manifest(changes)}}}}); };
  EXPECT_THAT(refused_with({{"b.bin", {{"bytes", 91}}}}), HasSubstr("b.bin: 90 bytes, but 91 in the manifest"));
  EXPECT_THAT(refused_with({{"b.bin", {{"file", nullptr}}}}), HasSubstr("b.bin: is not in the manifest"));
  EXPECT_THAT(refused_with({{"b.bin", {{"file", "./x/../a.bin"}}}}), HasSubstr("/data/manifest: "));
  EXPECT_THAT(refused_with({{"b.bin", {{"crc32c", "0123456g"}}}}), HasSubstr("/files/1/crc32c"));
  EXPECT_THAT(error({{"data", {{"manifest", at("none")}}}}), HasSubstr("/data/manifest: "));
}

TEST(ShardManifest, PathsAreRelativeToItsFolder) {
  const auto files = parse_shard_manifest(
      R"({"schema_version": 1, "files": [{"file": "x/../b", "bytes": 3, "crc32c": "ffffffff"},
          {"file": "/abs", "bytes": 0, "crc32c": "00000000"}]})",
      "folder", "m");
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files.at("folder/b").bytes, 3U);
  EXPECT_EQ(files.at("folder/b").crc32c, 0xffffffffU);
  EXPECT_EQ(files.at("/abs").bytes, 0U);
  EXPECT_THAT(refusal([] {
                (void)parse_shard_manifest(
                    R"({"schema_version": 1, "files": [{"file": "b", "bytes": 3, "crc32c": "ffffffff"},
                    {"file": "./b", "bytes": 3, "crc32c": "ffffffff"}]})",
                    "", "m");
              }),
              HasSubstr(R"(m: /files/1/file: got "./b" once more)"));
}

}  // namespace
}  // namespace droptest::experiments::resolve_data_test
