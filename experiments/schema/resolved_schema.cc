// SPDX-License-Identifier: Apache-2.0
#include "experiments/schema/resolved_schema.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr const char* kKeyword = "x-resolved";

bool says(const json& rule, std::string_view word) {
  return rule.contains(kKeyword) && rule[kKeyword].is_string() && rule[kKeyword] == word;
}

json resolved_rule(json rule);

/// The members of a resolved object; `required` gets the names of those that are there always.
json resolved_members(json members, std::set<std::string>& required) {
  json result = json::object();
  for (auto& [name, member] : members.items()) {
    if (says(member, "absent")) continue;
    if (says(member, "always") || (member.contains("default") && !says(member, "optional"))) required.insert(name);
    result[name] = resolved_rule(std::move(member));
  }
  return result;
}

json resolved_rule(json rule) {
  if (!rule.is_object()) return rule;  // additionalProperties may be true or false
  const json difference = rule.value(kKeyword, json::object());
  DROPTEST_CHECK(difference.is_object() || says(rule, "always") || says(rule, "optional"),
                 "x-resolved: " + difference.dump());
  rule.erase(kKeyword);
  rule.erase("default");
  if (difference.is_object()) rule.merge_patch(difference);
  if (rule.contains("properties")) {
    std::set<std::string> required;
    for (const json& name : rule.value("required", json::array())) required.insert(name.get<std::string>());
    rule["properties"] = resolved_members(std::move(rule["properties"]), required);
    if (!required.empty()) rule["required"] = required;
  }
  if (rule.contains("$defs")) {
    std::set<std::string> ignored;
    rule["$defs"] = resolved_members(std::move(rule["$defs"]), ignored);
  }
  for (const char* inner : {"items", "additionalProperties", "propertyNames"}) {
    if (rule.contains(inner)) rule[inner] = resolved_rule(std::move(rule[inner]));
  }
  for (const char* branches : {"oneOf", "anyOf"}) {
    if (!rule.contains(branches)) continue;
    for (json& branch : rule[branches]) branch = resolved_rule(std::move(branch));
  }
  return rule;
}

}  // namespace

json resolved_schema(const json& spec_schema) { return resolved_rule(spec_schema); }

}  // namespace droptest::experiments
