// SPDX-License-Identifier: Apache-2.0
// Specs with the user's own program: the identity of a run, and the arguments and environment of the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/spec/program_network.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/recorded_files.h"
#include "experiments/spec/resolve_command.h"
#include "experiments/spec/run_id.h"
#include "experiments/spec/search_plan.h"
#include "experiments/spec/sweep_plan.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::command_spec_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const char* const kProgram = R"({"name": "mine", "command": ["program", "--rate={rate}", "{data_seed}"],
    "settings": {"rate": 0.5, "kind": "adam", "warm": true}, "files": [],
    "network": {"loss": {"model": "bernoulli", "loss_rate": "5%"}}})";

std::string id_of(const std::vector<std::string>& overrides) { return resolved(kProgram, overrides).run_id; }

std::string error_of(const std::vector<std::string>& overrides) {
  try {
    (void)resolved(kProgram, overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string file_of(const TemporaryFolder& folder, const std::string& name, const std::string& content) {
  const std::string path = folder.path() + "/" + name;
  std::ofstream(path) << content;
  return path;
}

TEST(CommandSpec, ResolvesToItselfByItsOwnSchema) {
  const ResolvedRun run = resolved(kProgram);
  EXPECT_EQ(resolve(run.spec, "s").spec, run.spec);
  EXPECT_EQ(resolve(run.spec, "s").run_id, run.run_id);
  EXPECT_TRUE(schema_of(SchemaKind::kCommandSpec).check(run.spec).empty());
  EXPECT_FALSE(run.spec.contains("training"));
  EXPECT_EQ(run.spec["network"]["classes"]["dp_gradient"]["reduce"]["loss"]["loss_rate"], 0.05);
  EXPECT_EQ(run.spec["network"]["classes"]["dp_gradient"]["path"], "contribution");
  EXPECT_EQ(run.spec["seeds"], json({{"weights", 1}, {"data", 1}, {"network", 1}}));
}

TEST(CommandSpec, TheIdIsOfCommandSettingsNetworkRulesAndSeeds) {
  const std::string base = id_of({});
  for (const char* same :
       {"/name=other", "/description=words", "/unit=bits", "/seed=1", "/network/loss/loss_rate=0.05"}) {
    EXPECT_EQ(id_of({same}), base) << same;
  }
  for (const char* other : {"/command/0=another", "/settings/rate=0.25", "/settings/more=1", "/seed=2", "/seeds/data=2",
                            "/network/loss/loss_rate=0.06", "/network/fill=count_rescale",
                            R"(/rules=[{"operation": "all_gather", "class": "control"}])"}) {
    EXPECT_NE(id_of({other}), base) << other;
  }
}

TEST(CommandSpec, AFileCountsByItsContent) {
  const TemporaryFolder folder;
  const std::string one = file_of(folder, "one.py", "print(1)");
  const std::string copy = file_of(folder, "copy.py", "print(1)");
  const std::string other = file_of(folder, "other.py", "print(2)");
  const auto with_file = [](const std::string& path) {
    json document = comm::parse_json(kProgram, "s");
    document["files"] = {path};
    FileHashes files;
    return resolve(document, "s.json", &files);
  };
  EXPECT_EQ(with_file(one).run_id, with_file(copy).run_id);
  EXPECT_NE(with_file(one).run_id, with_file(other).run_id);
  EXPECT_THAT(recorded_files(with_file(one).spec), ElementsAre(one));

  // A run of a spec that is resolved refuses another content.
  const ResolvedRun run = with_file(one);
  std::ofstream(one) << "print(3)";
  FileHashes files;
  EXPECT_THROW(require_recorded_files(run, "s", files, ShardFiles::kCompared), ConfigError);
  FileHashes again;
  try {
    (void)resolve(run.spec, "s", &again);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("s: /files/0/sha256: got \""));
  }
  EXPECT_THROW(with_file(folder.path() + "/absent.py"), ConfigError);
}

TEST(CommandSpec, WithoutFilesTheScriptCountsAndOtherFilesAreNamed) {
  const TemporaryFolder folder;
  const std::string program = file_of(folder, "program", "");
  const std::string script = file_of(folder, "train.py", "print(1)");
  const std::string config = file_of(folder, "config.yaml", "0");
  json document = comm::parse_json(kProgram, "s");
  document.erase("files");
  document["settings"] = {{"script", script}};
  const auto run_with = [&](const json& command) {
    document["command"] = command;
    return resolve(document, "s.json");
  };
  const auto files_with = [&](const json& command) { return run_with(command).spec["files"]; };
  EXPECT_EQ(files_with({program, "--config_file", config, script}), json({script}));
  EXPECT_EQ(files_with({program, "--config=" + config, "{script}"}), json({script}));
  EXPECT_EQ(files_with({program, "--fast"}), json({program}));
  EXPECT_EQ(files_with({"torchrun", config}), json({config}));
  EXPECT_THAT(run_with({program, "--config=" + config, script}).warnings.at(0).message,
              HasSubstr("the command names " + config + ", which is not among them"));
  EXPECT_TRUE(run_with({program, script, "-c", "text"}).warnings.empty());
  EXPECT_TRUE(run_with({program, script}).warnings.empty());
  // What no file shows is said.
  EXPECT_EQ(files_with({"python3", "-m", "package.that.is.no.file"}), json::array());
  EXPECT_THAT(run_with({"python3", "train.py.that.is.no.file"}).warnings.at(0).message,
              HasSubstr("no word of the command"));
  EXPECT_THAT(run_with({"python3", "-m", "train", config}).warnings.at(0).message, HasSubstr("a module or a text"));
  document["files"] = {config};
  EXPECT_THAT(run_with({"python3", script, config}).warnings.at(0).message, HasSubstr("names " + script));
  document["files"] = {folder.path() + "/./train.py"};
  EXPECT_TRUE(run_with({"python3", script}).warnings.empty());
}

TEST(CommandSpec, SettingsWithNamesOfMembersThatNameFilesCount) {
  for (const char* name : {"files", "shards", "manifest", "sha256", "crc32c", "file", "text", "version", "weights"}) {
    const std::string pointer = std::string("/settings/") + name;
    const std::vector<std::string> others = {"/settings/files=a", "/settings/sha256=a", "/settings/crc32c=a"};
    std::vector<std::string> one = others;
    std::vector<std::string> two = others;
    one.push_back(pointer + "=1");
    two.push_back(pointer + "=2");
    EXPECT_NE(id_of(one), id_of(two)) << name;
    const std::vector<std::string> omits = twin_omits(resolved(kProgram, one).spec);
    EXPECT_THAT(omits, testing::Not(testing::Contains(pointer)));
  }
}

TEST(CommandSpec, NamesInBracesStandForValues) {
  CommandConfig command{{"{rate}", "--a={rate}{kind}", "x{2}{}{a b}{", "{port}", "{folder}/log", "{weights_seed}"},
                        {{"rate", "0.5"}, {"kind", "adam"}}};
  EXPECT_THAT(with_values(command.words, command_values(command, {4, 5, 6}, 1234, "/f"), "/command"),
              ElementsAre("0.5", "--a=0.5adam", "x{2}{}{a b}{", "1234", "/f/log", "4"));
  EXPECT_THAT(
      error_of({"/command/1=--rate={rat}"}),
      HasSubstr("s.json: /command/1: got {rat}, want a member of /settings, a seed, {port} or {folder}; did you "
                "mean \"rate\"?"));
  EXPECT_THAT(error_of({"/settings/port=1"}), HasSubstr("s.json: /settings/port: got a setting with a name"));
}

TEST(CommandSpec, MembersOfDroptestsOwnTrainingAreRefusedAsSuch) {
  json document = comm::parse_json(kProgram, "s");
  for (const char* member : {"model", "data", "training", "parallel", "checkpoint", "time", "backend"}) {
    document[member] = json::object();
  }
  try {
    (void)resolve(document, "s.json");
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    for (const char* member : {"model", "data", "training", "parallel", "checkpoint", "time", "backend"}) {
      EXPECT_THAT(error.what(),
                  HasSubstr("s.json: /" + std::string(member) + ": got it with /command, want it absent"));
    }
  }
  json misspelt = comm::parse_json(kProgram, "s");
  misspelt["comand"] = misspelt["command"];
  misspelt.erase("command");
  try {
    (void)resolve(misspelt, "s.json");
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "s.json: /comand: got an unknown key; did you mean \"command\"?");
  }
  EXPECT_THAT(error_of({"/network/path=ring"}), HasSubstr("/network/path: got \"ring\", want \"contribution\""));
  EXPECT_THAT(error_of({R"(/network={"fill": "zero"})"}), HasSubstr("/network: got no loss"));
  EXPECT_THAT(error_of({"/command=[]"}), HasSubstr("/command"));
  EXPECT_THAT(error_of({R"(/settings/rate=[1])"}), HasSubstr("/settings/rate: got [1]"));
}

TEST(CommandSpec, SweepsSeedsAndTwinsAreThoseOfRuns) {
  json document = comm::parse_json(kProgram, "s");
  document["sweep"] = {{"cross", {{"/network/loss/loss_rate", {0, "5%"}}, {"/settings/rate", {0.5, 0.25}}}}};
  document["repeat"] = {{"seeds", 2}};
  const SweepPlan plan = plan_sweep({document, "s.json"});
  ASSERT_EQ(plan.runs.size(), 8u);
  EXPECT_EQ(plan.runs[3].run.config.command->settings.at("rate"), "0.25");
  EXPECT_EQ(plan.runs[4].run.config.seeds.weights, 2u);
  EXPECT_EQ(plan.runs[1].run.run_id, id_of({"/network/loss/loss_rate=0", "/settings/rate=0.25"}));

  // The twin differs only in the network and in its seed.
  json lossy = plan.runs[2].run.spec;
  json twin = plan.runs[0].run.spec;
  for (const std::string& pointer : twin_omits(twin)) {
    for (json* spec : {&lossy, &twin}) (*spec)[json::json_pointer(pointer)] = json();
  }
  EXPECT_EQ(lossy, twin);
  EXPECT_NE(plan.runs[2].run.run_id, plan.runs[0].run.run_id);

  document["sweep"]["best_over"] = {"/settings/rate"};
  try {
    (void)plan_sweep({document, "s.json"});
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("s.json: /sweep/best_over: got it with /command"));
  }
}

TEST(CommandSpec, ASearchHasTwinsThatLoseNothing) {
  const SearchPlan plan({comm::parse_json(kProgram, "s"), "s.json"});
  const PlannedRun twin = plan.lossless(1);
  EXPECT_EQ(twin.run.spec["network"]["classes"]["dp_gradient"]["reduce"]["loss"]["model"], "none");
  EXPECT_EQ(twin.run.config.seeds.weights, 2u);
  EXPECT_EQ(plan.at(0.05, 0).run.run_id, id_of({}));
}

TEST(CommandSpec, TheProgramReadsTheNetworkThatTheRunHas) {
  const ResolvedRun run = resolved(kProgram, {"/seeds/network=7"});
  const json network = network_of_command(run, "/results/mine/0");
  EXPECT_EQ(network["seed"], 7);
  EXPECT_EQ(network["statistics"], "/results/mine/0");
  const comm::ProgramNetwork read = comm::program_network_from_json(network.dump(), "network.json", 4);
  EXPECT_EQ(*read.classes, run.spec["network"]["classes"]);
}

}  // namespace
}  // namespace droptest::experiments::command_spec_test
