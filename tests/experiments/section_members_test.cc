// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/section_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/json/schema_checker.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/run_config.h"
#include "sim/error.h"

namespace droptest::experiments::section_members_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;

struct Entry {
  int number = 1;
  void visit_members(const auto& visit) { visit("number", number); }
};

struct Section {
  std::uint64_t count = 1;
  double share = 0.5;
  bool is_on = false;
  std::string text = "initial";
  enum class Color : std::uint8_t { kRed, kBlue, kNameless } color = Color::kRed;
  enum class Switch : std::uint8_t { kOff, kOn } by_flag = Switch::kOff;
  std::optional<int> perhaps;
  std::vector<std::string> texts;
  std::vector<Entry> entries;
  std::optional<Entry> entry;
  std::pair<int, int> range{0, 0};
  std::chrono::milliseconds wait{7};
  int inner = 0;
  std::string kind = "initial";
  int of_kind = 0;

  void visit_members(const auto& visit) {
    visit("count", count);
    visit("share", share);
    visit("is_on", is_on);
    visit("text", text);
    visit("color", color, {{"red", Color::kRed}, {"blue", Color::kBlue}});
    visit("by_flag", by_flag, {{false, Switch::kOff}, {true, Switch::kOn}});
    visit("perhaps", perhaps);
    visit("texts", texts);
    visit("entries", entries);
    visit("entry", entry);
    visit("range", range);
    visit("wait_seconds", wait);
    visit("object", [this](const auto& of_object) { of_object("inner", inner); });
    visit("shorthand", [this](const auto& of_shorthand) {
      of_shorthand("kind", kind);
      of_shorthand("number", of_kind);
    });
  }
};

const char* const kAll = R"({"count": 18446744073709551615, "share": 0.25, "is_on": true, "text": "t", "color": "blue",
    "by_flag": true, "perhaps": 3, "texts": ["a", "b"], "entries": [{"number": 4}, {}], "entry": {"number": 5},
    "range": [6, 7], "wait_seconds": 0.25, "object": {"inner": 8}, "shorthand": {"kind": "k", "number": 9}})";

TEST(SectionMembers, AreReadByTheirNames) {
  Section section;
  section.texts = {"of an earlier reading"};
  read_members(comm::parse_json(kAll, "s"), section);
  EXPECT_EQ(section.count, 18446744073709551615U);
  EXPECT_EQ(section.share, 0.25);
  EXPECT_TRUE(section.is_on);
  EXPECT_EQ(section.text, "t");
  EXPECT_EQ(section.color, Section::Color::kBlue);
  EXPECT_EQ(section.by_flag, Section::Switch::kOn);
  EXPECT_EQ(section.perhaps, 3);
  EXPECT_THAT(section.texts, ElementsAre("a", "b"));
  ASSERT_EQ(section.entries.size(), 2U);
  EXPECT_EQ(section.entries[0].number, 4);
  EXPECT_EQ(section.entries[1].number, 1);
  EXPECT_EQ(section.entry.value().number, 5);
  EXPECT_EQ(section.range, (std::pair{6, 7}));
  EXPECT_EQ(section.wait, std::chrono::milliseconds(250));
  EXPECT_EQ(section.inner, 8);
  EXPECT_EQ(section.kind, "k");
  EXPECT_EQ(section.of_kind, 9);
}

TEST(SectionMembers, AnAbsentMemberKeepsItsValue) {
  Section section;
  read_members({{"color", "blue"}, {"unknown", 1}}, section);
  json expected = members_json(Section());
  expected["color"] = "blue";
  EXPECT_EQ(members_json(section), expected);
}

TEST(SectionMembers, AShorthandIsAListOfOneOrAKind) {
  Section section;
  read_members({{"texts", "one"}, {"shorthand", "word"}, {"wait_seconds", 0.0001}}, section);
  EXPECT_THAT(section.texts, ElementsAre("one"));
  EXPECT_EQ(section.kind, "word");
  EXPECT_EQ(section.of_kind, 0);
  EXPECT_EQ(section.wait, std::chrono::milliseconds(1)) << "rounded up, so that no wait becomes none";
}

TEST(SectionMembers, AWordWithoutAValueIsABug) {
  Section section;
  EXPECT_THROW(read_members({{"color", "green"}}, section), CheckError);
  EXPECT_THROW(read_members({{"by_flag", "true"}}, section), CheckError);
}

TEST(SectionMembers, ANumberInThePlaceOfASectionIsABug) {
  Section section;
  EXPECT_THROW(read_members(3, section), CheckError);
}

TEST(SectionMembers, AreWrittenAsTheyAreRead) {
  const json all = comm::parse_json(kAll, "s");
  Section section;
  read_members(all, section);
  json written = members_json(section);
  EXPECT_EQ(written["entries"][1]["number"], 1);
  written["entries"][1] = json::object();
  EXPECT_EQ(written, all);
  section.perhaps.reset();
  section.color = Section::Color::kNameless;
  EXPECT_FALSE(members_json(section).contains("perhaps"));
  EXPECT_FALSE(members_json(section).contains("color"));
}

/// Lists members by their pointers, those of the entries of a list at "/0", with their initial values.
class MemberList {
 public:
  struct Found {
    std::map<std::string, json> initial;                 ///< absent: a section, or no value
    std::map<std::string, std::set<std::string>> words;  ///< as JSON
  };
  MemberList(std::string at, Found& found) : at_(std::move(at)), found_(found) {}

  template <class T>
  void operator()(const char* name, T&& value) const {
    using Value = std::remove_cvref_t<T>;
    const std::string here = comm::child_pointer(at_, name);
    if constexpr (requires { value.visit_members(*this); }) {
      value.visit_members(MemberList(here, found_));
    } else if constexpr (std::is_invocable_v<Value&, const MemberList&>) {
      value(MemberList(here, found_));
    } else if constexpr (section_members::kIsList<Value> || section_members::kIsOptional<Value>) {
      typename Value::value_type element{};
      if constexpr (requires { element.visit_members(*this); }) {
        element.visit_members(MemberList(here + (section_members::kIsList<Value> ? "/0" : ""), found_));
      } else {
        add(here, [&](const MemberWriter& write) { write(name, value); });
      }
    } else {
      add(here, [&](const MemberWriter& write) { write(name, value); });
    }
  }
  template <class Value>
  void operator()(const char* name, Value& value, MemberWords<Value> words) const {
    const std::string here = comm::child_pointer(at_, name);
    add(here, [&](const MemberWriter& write) { write(name, value, words); });
    for (const auto& [word, of_word] : words) found_.words[here].insert(word.dump());
  }

 private:
  template <class Write>
  void add(const std::string& pointer, const Write& write) const {
    json written = json::object();
    write(MemberWriter(written));
    found_.initial.emplace(pointer, written.empty() ? json() : written.begin().value());
  }

  std::string at_;
  Found& found_;
};

/// The members of all structs of specs. A member that two structs have is that of the first.
MemberList::Found members_of_specs() {
  MemberList::Found found;
  const auto add = [&found](const std::string& at, auto members) { members.visit_members(MemberList(at, found)); };
  add("", RunConfig());
  add("/seeds", Seeds());
  add("/data", DataConfig());
  add("/data", ShardConfig());
  add("/data", ExampleConfig());
  add("/data/files/0", ShardFile());
  add("/parallel", models::ShardOptions());
  add("/memory", MemoryConfig());
  add("/outer", models::OuterOptions());
  add("/model", models::Gpt2Config());
  add("/model/attention", models::AttentionOptions());
  add("/training/lora", models::LoraOptions());
  add("/training/tensors/0", models::TensorRule());
  found.initial.erase("/alerts/0/do/kind");  // a word in the place of an object
  found.words.erase("/alerts/0/do/kind");
  return found;
}

/// Calls use(pointer, rule) for the member with that rule, and for each one in it.
void for_each_rule(const json& rule, const std::string& at,
                   const std::function<void(const std::string&, const json&)>& use) {
  use(at, rule);
  const json properties = rule.value("properties", json::object());
  for (const auto& [name, member] : properties.items()) for_each_rule(member, comm::child_pointer(at, name), use);
  if (rule.contains("items")) for_each_rule(rule["items"], at + "/0", use);
}

const json& schema_of_specs() { return schema_of(SchemaKind::kSpec).source(); }

TEST(SectionMembers, HaveTheNamesOfTheSchema) {
  const MemberList::Found found = members_of_specs();
  for (const auto& [pointer, value] : found.initial) {
    const json::json_pointer place(pointer);
    std::vector<std::string> tokens;
    for (json::json_pointer rest = place; !rest.empty(); rest.pop_back()) tokens.insert(tokens.begin(), rest.back());
    EXPECT_EQ(schema_of(SchemaKind::kSpec).unknown_pointer(tokens), "");
  }
  EXPECT_GT(found.initial.size(), 120U);
}

TEST(SectionMembers, HaveTheWordsOfTheSchema) {
  MemberList::Found found = members_of_specs();
  for_each_rule(schema_of_specs(), "", [&](const std::string& pointer, const json& rule) {
    const auto words = found.words.extract(pointer);
    if (words.empty()) return;
    const json known = rule.value("enum", json({false, true}));
    for (const json& word : known) EXPECT_THAT(words.mapped(), testing::Contains(word.dump())) << pointer;
  });
  EXPECT_THAT(found.words, testing::IsEmpty());
}

TEST(SectionMembers, BeginWithTheDefaultsOfTheSchema) {
  const MemberList::Found found = members_of_specs();
  // Without their sections there are no adapters and there is no loss scale.
  const std::set<std::string> off = {"/training/lora/rank", "/training/lora/targets", "/training/loss_scale/kind"};
  int defaults = 0;
  for_each_rule(schema_of_specs(), "", [&](const std::string& pointer, const json& rule) {
    const auto member = found.initial.find(pointer);
    if (member == found.initial.end() || !rule.contains("default") || off.contains(pointer)) return;
    EXPECT_EQ(member->second, rule["default"]) << pointer;
    ++defaults;
  });
  EXPECT_GT(defaults, 60);
}

TEST(SectionMembers, AreAllOfTheSectionsThatNoResolverReads) {
  const MemberList::Found found = members_of_specs();
  const std::set<std::string> read_elsewhere = {"/backend/rendezvous",
                                                "/start/sha256",
                                                "/training/global_batch_sequences",
                                                "/training/class_weights",
                                                "/training/precision/master",
                                                "/training/layer_decay",
                                                "/training/tensors/0/frozen"};
  for (const char* section : {"alerts", "backend", "checkpoint", "elastic", "failures", "record", "restart", "seeds",
                              "start", "training", "validation"}) {
    for_each_rule(schema_of_specs()["properties"][section], std::string("/") + section,
                  [&](const std::string& pointer, const json& rule) {
                    const bool is_section = rule.contains("properties") || rule.contains("items");
                    const std::string list = pointer.substr(0, pointer.rfind("/0"));
                    if (is_section || found.initial.contains(list) || read_elsewhere.contains(list)) return;
                    const auto member = found.initial.lower_bound(pointer);
                    const bool is_read =
                        member != found.initial.end() && (member->first + "/").starts_with(pointer + "/");
                    EXPECT_TRUE(is_read || read_elsewhere.contains(pointer)) << pointer;
                  });
  }
}

}  // namespace
}  // namespace droptest::experiments::section_members_test
