// SPDX-License-Identifier: Apache-2.0
#include "experiments/schema/schema_kinds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "experiments/schema/resolved_schema.h"
#include "sim/error.h"
#include "sim/traffic_class.h"

namespace droptest::experiments::schema_kinds_test {
namespace {

using comm::canonical_json;
using comm::parse_json;
using nlohmann::json;
using testing::HasSubstr;

/// Whether a rule of an embedded schema, or the definition that it refers to, has the keyword.
bool has_keyword(const json& rule, const char* keyword) {
  if (rule.contains(keyword) || !rule.contains("$ref")) return rule.contains(keyword);
  const std::string reference = rule["$ref"];  // references from schema_of() name a file
  const std::string_view name = std::string_view(reference).substr(0, reference.find(".schema.json"));
  const auto known = std::ranges::find(schema_names(), name, &std::pair<std::string_view, SchemaKind>::first);
  const json::json_pointer place(reference.substr(reference.find('#') + 1));
  return has_keyword(schema_of(known->second).source().at(place), keyword);
}

TEST(Schema, EmbeddedSchemasLoadAndForbidUnknownKeysEverywhere) {
  const std::function<void(const json&, const std::string&)> walk = [&walk](const json& rule,
                                                                            const std::string& place) {
    if (rule.is_object() && rule.contains("properties") && rule["properties"].is_object()) {
      // Lines of metrics.jsonl may have numbers that a program gives a name to.
      const json further = rule.value("additionalProperties", json(true));
      const bool is_line = rule.value("title", json()) == "Line of metrics.jsonl";
      EXPECT_TRUE(is_line ? further["type"] == json({"number", "null"}) : further == false) << place;
      for (const auto& [name, property] : rule["properties"].items()) {
        EXPECT_TRUE(has_keyword(property, "title") && has_keyword(property, "description")) << place << " " << name;
      }
    }
    if (rule.is_object() && rule.contains("$defs")) {
      for (const auto& [name, definition] : rule["$defs"].items()) {
        EXPECT_FALSE(definition.contains("default")) << place << " " << name << ": only rules of members have defaults";
      }
    }
    if (rule.is_structured()) {
      for (const auto& [name, part] : rule.items()) walk(part, place + "/" + name);
    }
  };
  for (const SchemaKind kind :
       {SchemaKind::kSpec, SchemaKind::kResolvedSpec, SchemaKind::kCommandSpec, SchemaKind::kMetrics,
        SchemaKind::kLossStatistics, SchemaKind::kSummary, SchemaKind::kSweep, SchemaKind::kSlurmArray,
        SchemaKind::kSlurmTask, SchemaKind::kShards, SchemaKind::kEvent}) {
    walk(schema_of(kind).source(), "schema " + std::to_string(static_cast<int>(kind)));
  }
}

// Elsewhere nothing would read it.
TEST(Schema, WordsOfTheIdentityStandAtMembersOfSpecs) {
  std::set<std::pair<std::string, json>> read;  // last names and words
  for (const SchemaKind kind : {SchemaKind::kSpec, SchemaKind::kCommandSpec}) {
    for (const auto& [pointer, word] : schema_of(kind).annotations("x-identity")) {
      read.emplace(pointer.substr(pointer.rfind('/') + 1), word);
    }
  }
  std::set<std::pair<std::string, json>> written;
  const std::function<void(const json&, const std::string&)> walk = [&](const json& rule, const std::string& name) {
    if (rule.is_object() && rule.contains("x-identity")) written.emplace(name, rule["x-identity"]);
    if (!rule.is_structured()) return;
    for (const auto& [inner, part] : rule.items()) walk(part, inner);
  };
  for (const auto& [name, kind] : schema_names()) walk(schema_of(kind).source(), name.data());
  EXPECT_EQ(written, read);
  EXPECT_THAT(read, testing::Contains(std::pair<std::string, json>("attention_chunk", "all")));
}

TEST(ResolvedSchema, HasNoDefaultsAndRequiresWhatHasOne) {
  const json spec = parse_json(R"({"title": "spec", "x-resolved": {"title": "resolved"}, "type": "object",
      "required": ["named"],
      "properties": {
        "named": {"type": "string"},
        "usual": {"type": "integer", "default": 1},
        "seldom": {"type": "string", "default": "auto", "x-resolved": "optional"},
        "found": {"type": "integer", "x-resolved": "always"},
        "shorthand": {"type": "string", "default": "x", "x-resolved": "absent"},
        "narrow": {"enum": ["a", "b"], "minimum": 0, "x-resolved": {"enum": ["b"], "minimum": null}},
        "list": {"items": {"properties": {"inner": {"$ref": "#/$defs/rule", "default": 2}}}},
        "either": {"oneOf": [{"properties": {"deep": {"default": 3}}}, {"required": ["x"]}]},
        "any": {"additionalProperties": {"properties": {"deep": {"default": {}}}}, "propertyNames": {"default": "n"}}},
      "additionalProperties": false,
      "$defs": {"rule": {"anyOf": [{"default": 4}]}, "dropped": {"x-resolved": "absent"}}})",
                               "spec");
  const json expected = parse_json(R"({"title": "resolved", "type": "object",
      "required": ["found", "named", "usual"],
      "properties": {
        "named": {"type": "string"},
        "usual": {"type": "integer"},
        "seldom": {"type": "string"},
        "found": {"type": "integer"},
        "narrow": {"enum": ["b"]},
        "list": {"items": {"properties": {"inner": {"$ref": "#/$defs/rule"}}, "required": ["inner"]}},
        "either": {"oneOf": [{"properties": {"deep": {}}, "required": ["deep"]}, {"required": ["x"]}]},
        "any": {"additionalProperties": {"properties": {"deep": {}}, "required": ["deep"]}, "propertyNames": {}}},
      "additionalProperties": false,
      "$defs": {"rule": {"anyOf": [{}]}}})",
                                   "resolved");
  EXPECT_EQ(resolved_schema(spec), expected);
  EXPECT_THROW(resolved_schema({{"x-resolved", "sometimes"}}), CheckError);
}

TEST(ResolvedSchema, PercentSweepsAndShorthandsAreOfTheInputAlone) {
  const json resolved = schema_document("resolved_spec");
  EXPECT_FALSE(resolved["properties"].contains("sweep"));
  EXPECT_EQ(resolved["properties"]["network"]["required"], json::array({"classes"}));
  EXPECT_EQ(resolved["properties"]["device"]["enum"], json::array({"cuda"}));
  EXPECT_EQ(resolved["$defs"]["fraction_or_percent"]["type"], "number");
  EXPECT_EQ(resolved.dump().find("%"), std::string::npos);
}

// The references of a rule and of all its parts.
std::vector<std::string> references_of(const json& rule) {
  std::vector<std::string> references;
  if (rule.is_object() && rule.contains("$ref")) references.push_back(rule["$ref"]);
  for (const json& part : rule) {
    if (part.is_structured()) std::ranges::copy(references_of(part), std::back_inserter(references));
  }
  return references;
}

TEST(Schema, ASelfContainedDocumentHasAllThatItRefersTo) {
  for (const auto& [name, kind] : schema_names()) {
    const json document = self_contained_schema(name);
    for (const std::string& target : references_of(document)) {
      ASSERT_TRUE(target.starts_with('#')) << name << ": " << target;
      EXPECT_TRUE(document.contains(json::json_pointer(target.substr(1)))) << name << ": " << target;
    }
  }
  EXPECT_THROW(self_contained_schema("sumary"), CheckError);
  const json statistics = self_contained_schema("loss_statistics");
  EXPECT_EQ(statistics["$defs"]["fill"], schema_document("spec")["$defs"]["fill"]);
  const json sweep = self_contained_schema("sweep");
  EXPECT_EQ(sweep["properties"]["spec"]["anyOf"][0]["$ref"], "#/$defs/spec");
  EXPECT_EQ(sweep["$defs"]["spec"]["required"], schema_document("spec")["required"]);
  // A sweep refers to the definitions "seed" of specs and of summaries.
  EXPECT_EQ(sweep["$defs"]["spec"]["properties"]["data"]["title"], "Data");
  EXPECT_NE(sweep["$defs"]["seed"], sweep["$defs"]["spec_seed"]);
}

TEST(Schema, NamesTheTrafficClassesOfTheTable) {
  std::set<std::string> all, lossy;
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    all.emplace(sim::traffic_class_name(of));
    if (of != sim::TrafficClass::kControl) lossy.emplace(sim::traffic_class_name(of));
  }
  const json spec = schema_document("spec");
  EXPECT_EQ(spec["$defs"]["any_traffic_class"]["enum"].get<std::set<std::string>>(), all);
  EXPECT_EQ(spec["$defs"]["traffic_class"]["enum"].get<std::set<std::string>>(), lossy);
  std::set<std::string> configured;
  for (const auto& member : spec["properties"]["network"]["properties"]["classes"]["properties"].items()) {
    configured.insert(member.key());
  }
  EXPECT_EQ(configured, lossy);
}

TEST(Schema, DefaultsAreWrittenOutAtEveryDepth) {
  const json full =
      schema_of(SchemaKind::kSpec)
          .with_defaults(parse_json(
              R"({"name": "t", "data": {"text": "t"}, "training": {"steps": 2e2, "learning_rate": 1}, "network": {"gather":
          {"loss": {"model": "gilbert_elliott", "p_good_to_bad": 0, "p_bad_to_good": 1}}}})",
              "d"));
  EXPECT_EQ(canonical_json(full["training"]["steps"]), "200");
  EXPECT_EQ(canonical_json(full["training"]["learning_rate"]), "1.0");
  EXPECT_EQ(canonical_json(full["training"]["beta2"]), "0.95");
  EXPECT_EQ(canonical_json(full["network"]["loss"]), R"({"model":"none"})");
  EXPECT_EQ(canonical_json(full["network"]["gather"]["loss"]),
            R"({"loss_bad":1.0,"loss_good":0.0,"model":"gilbert_elliott","p_bad_to_good":1.0,"p_good_to_bad":0.0})");
  EXPECT_EQ(full["backend"]["rendezvous"]["kind"], "auto");
  EXPECT_FALSE(full.contains("sweep"));
  EXPECT_EQ(full["seed"], 1);
}

TEST(Schema, KnowsWhichPointersCanExist) {
  const comm::Schema& rules = schema_of(SchemaKind::kSpec);
  EXPECT_EQ(rules.unknown_pointer({"network", "loss"}), "");
  EXPECT_EQ(rules.unknown_pointer({"network", "classes", "tp_forward", "reduce", "loss", "mean_burst_packets"}), "");
  EXPECT_EQ(rules.unknown_pointer({"sweep", "cross", "/any/thing"}), "");
  EXPECT_THAT(rules.unknown_pointer({"network", "los"}),
              HasSubstr("no member \"los\" in /network; did you mean \"loss\"?"));
  EXPECT_EQ(rules.unknown_pointer({"seed", "x"}), "/seed has no members");
}

}  // namespace
}  // namespace droptest::experiments::schema_kinds_test
