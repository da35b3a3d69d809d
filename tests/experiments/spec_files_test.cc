// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/spec_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/files/atomic_file.h"
#include "experiments/spec/spec.h"
#include "experiments/spec/sweep_plan.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::spec_files_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class SpecFiles : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const { write_file_atomically(path(name), text); }
  json merged(const std::string& name) const { return read_spec(path(name)).document; }
  std::string error_of(const std::string& name, const std::vector<std::string>& overrides = {}) const {
    return config_error_of([&] { (void)plan_sweep(read_spec(path(name), overrides)); });
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(SpecFiles, ObjectsMergeListsReplaceAndNullTakesAway) {
  write("base.json", R"({"name": "base", "data": {"text": "a", "validation_fraction": 0.2}, "seed": 4,
      "training": {"steps": 5, "learning_rate": 0.5}, "sweep": {"cross": {"/training/steps": [1, 2]}}})");
  write("one.json", R"({"extends": "base.json", "name": "one", "training": {"steps": 7}, "seed": null,
      "sweep": {"cross": {"/training/steps": [3], "/model/layers": [1]}}})");
  EXPECT_EQ(merged("one.json"), comm::parse_json(R"({"name": "one", "data": {"text": "a", "validation_fraction": 0.2},
      "training": {"steps": 7, "learning_rate": 0.5}, "sweep": {"cross": {"/training/steps": [3],
      "/model/layers": [1]}}})",
                                                 "expected"));
}

TEST_F(SpecFiles, SweptPointersHaveTheOrderOfTheFilesTheExtendedOneFirst) {
  write("base.json", R"({"name": "base", "data": {"text": "a"},
      "sweep": {"cross": {"/training/steps": [1, 2], "/model/layers": [1]}}})");
  write("one.json", R"({"extends": "base.json",
      "sweep": {"cross": {"/model/heads": [2], "/model/layers": [1, 3], "/training/steps": null}}})");
  EXPECT_EQ(plan_sweep(read_spec(path("one.json"))).swept, (std::vector<std::string>{"/model/layers", "/model/heads"}));
}

TEST_F(SpecFiles, PathsAreRelativeToTheFileThatNamesThemAndChainsWork) {
  std::filesystem::create_directory(path("sub"));
  write("root.json", R"({"name": "root", "data": {"text": "a"}, "seed": 1, "description": "root"})");
  write("sub/middle.json", R"({"extends": "../root.json", "seed": 2, "name": "middle"})");
  write("leaf.json", R"({"extends": "sub/middle.json", "name": "leaf"})");
  EXPECT_EQ(merged("leaf.json"), comm::parse_json(R"({"name": "leaf", "data": {"text": "a"}, "seed": 2,
      "description": "root"})",
                                                  "expected"));
}

TEST_F(SpecFiles, ASpecThatExtendsAnotherIsTheRunOfTheMergedOne) {
  write("base.json", R"({"name": "b", "data": {"text": "a"}, "training": {"steps": 5}})");
  write("one.json", R"({"extends": "base.json", "training": {"steps": 7}})");
  write("whole.json", R"({"name": "b", "data": {"text": "a"}, "training": {"steps": 7}})");
  EXPECT_EQ(plan_sweep(read_spec(path("one.json"))).runs[0].run.run_id,
            plan_sweep(read_spec(path("whole.json"))).runs[0].run.run_id);
}

TEST_F(SpecFiles, AnErrorNamesTheFileThatHoldsTheValue) {
  write("base.json", R"({"name": "b", "data": {"text": "a"}, "training": {"steps": 0, "accumulation": 0}, "sede": 1})");
  write("one.json", R"({"extends": "base.json", "training": {"accumulation": -1}})");
  const std::string all = error_of("one.json");
  EXPECT_THAT(all, HasSubstr(path("base.json") + ": /training/steps: got 0"));
  EXPECT_THAT(all, HasSubstr(path("one.json") + ": /training/accumulation: got -1"));
  EXPECT_THAT(all, HasSubstr(path("base.json") + ": /sede: got an unknown key"));
  // An error in a value from the command line names the file on the command line.
  EXPECT_THAT(error_of("one.json", {"/training/steps=-5"}), HasSubstr(path("one.json") + ": /training/steps: got -5"));
}

TEST_F(SpecFiles, AnErrorOfASweptValueNamesTheFileOfTheSweep) {
  write("base.json", R"({"name": "b", "data": {"text": "a"}, "training": {"steps": 5},
      "sweep": {"zip": {"/model/layers": ["x", 1]}}})");
  write("one.json", R"({"extends": "base.json", "sweep": {"cross": {"/training/steps": [5, 0]}}})");
  const std::string all = error_of("one.json");
  EXPECT_THAT(all, HasSubstr(path("one.json") + ": /training/steps: got 0"));
  EXPECT_THAT(all, HasSubstr(path("base.json") + ": /model/layers: got \"x\""));
  // So do errors between several keys.
  write("two.json", R"({"extends": "base.json", "sweep": null, "parallel": {"tensor": 8}})");
  EXPECT_EQ(error_of("two.json"), path("two.json") + ": /parallel/tensor: got 8, want at most 4, the model's heads");
}

TEST_F(SpecFiles, ACircleAndAMissingFileAreErrors) {
  write("a.json", R"({"extends": "b.json"})");
  write("b.json", R"({"extends": "./a.json"})");
  EXPECT_EQ(error_of("a.json"), path("b.json") + ": /extends: got \"./a.json\", which goes round in a circle: " +
                                    path("a.json") + " -> " + path("b.json") + " -> " + path("./a.json"));
  write("self.json", R"({"extends": "self.json"})");
  EXPECT_THAT(error_of("self.json"), HasSubstr("goes round in a circle"));
  write("lost.json", R"({"extends": "nowhere.json"})");
  EXPECT_THAT(error_of("lost.json"), HasSubstr(path("lost.json") + ": /extends: "));
  EXPECT_THAT(error_of("lost.json"), HasSubstr("nowhere.json: No such file"));
  write("number.json", R"({"extends": 3})");
  EXPECT_EQ(error_of("number.json"), path("number.json") + ": /extends: got 3, want the name of a spec file");
  write("list.json", "[]");
  write("of_list.json", R"({"extends": "list.json"})");
  EXPECT_EQ(error_of("of_list.json"), path("list.json") + ": /: got [], want an object");
}

TEST(ValueOrigins, TheInnermostFileThatHoldsAValueCounts) {
  ValueOrigins origins;
  EXPECT_TRUE(origins.empty());
  origins.set("/a", "one");
  origins.set("/a/b", "two");
  origins.set("/a-b", "three");
  EXPECT_EQ(origins.of("/a/b/c"), "two");
  EXPECT_EQ(origins.of("/a/c"), "one");
  EXPECT_EQ(origins.of("/x"), "");
  origins.set("/a", "four");  // and all of it
  EXPECT_EQ(origins.of("/a/b"), "four");
  EXPECT_EQ(origins.of("/a-b"), "three");
  EXPECT_EQ(origins.with_files("s: /a/b: got 1\ns: no pointer\ns: /x: got 2", "s"),
            "four: /a/b: got 1\ns: no pointer\ns: /x: got 2");
}

}  // namespace
}  // namespace droptest::experiments::spec_files_test
