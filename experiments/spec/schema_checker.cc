// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/schema_checker.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "experiments/spec/json_text.h"
#include "experiments/spec/nearest_name.h"
#include "experiments/spec/pattern.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// Exact for every double and every 64-bit integer: comparisons of seeds and limits do not round.
long double exact(const json& number) {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  if (number.is_number_unsigned()) return static_cast<long double>(number.get<std::uint64_t>());
  if (number.is_number_integer()) return static_cast<long double>(number.get<std::int64_t>());
  return static_cast<long double>(number.get<double>());
}

std::size_t code_points(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

std::vector<std::string> keys_of(const json& object) {
  std::vector<std::string> keys;
  for (const auto& [name, member] : object.items()) keys.push_back(name);
  return keys;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::string join_or(const std::vector<std::string>& parts) {
  if (parts.size() < 2) return join(parts, "");
  return join({parts.begin(), parts.end() - 1}, ", ") + " or " + parts.back();
}

std::vector<std::string> quoted(const json& values) {
  std::vector<std::string> texts;
  for (const json& value : values) texts.push_back(quote_json(value));
  return texts;
}

/// `"a" and "b"`: the members that a branch requires, but for the tag.
std::string required_members(const json& branch, const std::string& tag) {
  std::vector<std::string> names;
  for (const json& name : branch.value("required", json::array())) {
    if (name != tag) names.push_back(quote_json(name));
  }
  return join(names, " and ");
}

std::string type_in_words(const std::string& type) {
  if (type == "integer") return "an integer";
  if (type == "number") return "a number";
  if (type == "string") return "text";
  if (type == "boolean") return "true or false";
  if (type == "object") return "an object";
  if (type == "array") return "a list";
  return type;
}

/// " in [0, 1)", " > 0", or nothing.
std::string range_in_words(const json& rule) {
  const auto bound = [&rule](const char* inclusive, const char* exclusive) -> std::pair<std::string, bool> {
    if (rule.contains(exclusive)) return {canonical_json(rule[exclusive]), true};
    if (rule.contains(inclusive)) return {canonical_json(rule[inclusive]), false};
    return {};
  };
  const auto [low, low_open] = bound("minimum", "exclusiveMinimum");
  const auto [high, high_open] = bound("maximum", "exclusiveMaximum");
  std::string words;
  if (!low.empty() && !high.empty()) {
    words = std::string(" in ") + (low_open ? "(" : "[") + low + ", " + high + (high_open ? ")" : "]");
  } else if (!low.empty()) {
    words = (low_open ? " > " : " >= ") + low;
  } else if (!high.empty()) {
    words = (high_open ? " < " : " <= ") + high;
  }
  if (rule.contains("multipleOf")) words += ", a multiple of " + canonical_json(rule["multipleOf"]);
  return words;
}

}  // namespace

std::string child_pointer(const std::string& pointer, const std::string& name) {
  return pointer + json::json_pointer().operator/=(name).to_string();
}

bool has_type(const json& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
}

std::string tag_of(const json& branches) {
  const json& first = branches.at(0);
  if (!first.contains("properties")) return {};
  for (const auto& [name, property] : first["properties"].items()) {
    const bool everywhere = std::all_of(branches.begin(), branches.end(), [&name = name](const json& branch) {
      return branch.contains("properties") && branch["properties"].contains(name) &&
             branch["properties"][name].contains("const");
    });
    if (everywhere) return name;
  }
  return {};
}

void SchemaChecker::report(const std::string& pointer, std::string message) {
  violations_.push_back({pointer, std::move(message)});
}

bool SchemaChecker::passes(const json& rule, const json& value) const {
  SchemaChecker trial(schema_);
  trial.check(rule, value, "");
  return trial.valid();
}

bool SchemaChecker::scalar_rules_hold(const json& rule, const json& value) const {
  if (rule.contains("type")) {
    const json& type = rule["type"];
    const bool holds = type.is_string() ? has_type(value, type.get_ref<const std::string&>())
                                        : std::any_of(type.begin(), type.end(), [&value](const json& one) {
                                            return has_type(value, one.get_ref<const std::string&>());
                                          });
    if (!holds) return false;
  }
  if (rule.contains("const") && value != rule["const"]) return false;
  if (rule.contains("enum") && std::find(rule["enum"].begin(), rule["enum"].end(), value) == rule["enum"].end()) {
    return false;
  }
  if (value.is_number()) {
    const long double number = exact(value);
    if (rule.contains("minimum") && !(number >= exact(rule["minimum"]))) return false;
    if (rule.contains("maximum") && !(number <= exact(rule["maximum"]))) return false;
    if (rule.contains("exclusiveMinimum") && !(number > exact(rule["exclusiveMinimum"]))) return false;
    if (rule.contains("exclusiveMaximum") && !(number < exact(rule["exclusiveMaximum"]))) return false;
    if (rule.contains("multipleOf") && std::fmod(number, exact(rule["multipleOf"])) != 0) return false;
  }
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (rule.contains("minLength") && code_points(text) < rule["minLength"].get<std::size_t>()) return false;
    if (rule.contains("maxLength") && code_points(text) > rule["maxLength"].get<std::size_t>()) return false;
    if (rule.contains("pattern") && !Pattern(rule["pattern"].get_ref<const std::string&>()).matches(text)) return false;
  }
  if (value.is_array() && rule.contains("minItems") && value.size() < rule["minItems"].get<std::size_t>()) return false;
  if (rule.contains("anyOf")) {
    const json& branches = rule["anyOf"];
    return std::any_of(branches.begin(), branches.end(),
                       [this, &value](const json& branch) { return passes(branch, value); });
  }
  return true;
}

void SchemaChecker::check(const json& rule, const json& value, const std::string& pointer) {
  if (rule.contains("$ref")) {
    const std::size_t before = violations_.size();
    check(schema_.resolve(rule), value, pointer);
    if (violations_.size() > before) return;
  }
  if (!scalar_rules_hold(rule, value)) {
    std::string message = "got " + quote_json(value) + ", want " + describe(rule);
    if (rule.contains("enum") && value.is_string()) {
      std::vector<std::string> known;
      for (const json& one : rule["enum"]) known.push_back(one.get<std::string>());
      const std::string nearest = nearest_name(value.get_ref<const std::string&>(), known);
      if (!nearest.empty()) message += "; did you mean \"" + nearest + "\"?";
    }
    report(pointer, std::move(message));
    return;
  }
  if (value.is_object()) check_members(rule, value, pointer);
  if (value.is_array() && rule.contains("items")) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      check(rule["items"], value[i], pointer + "/" + std::to_string(i));
    }
  }
  if (rule.contains("oneOf")) check_one_of(rule, value, pointer);
}

void SchemaChecker::check_members(const json& rule, const json& value, const std::string& pointer) {
  static const json kNone = json::object();
  const json& properties = rule.contains("properties") ? rule["properties"] : kNone;
  const json& patterns = rule.contains("patternProperties") ? rule["patternProperties"] : kNone;
  for (const auto& [name, member] : value.items()) {
    const std::string place = child_pointer(pointer, name);
    if (rule.contains("propertyNames") && !passes(rule["propertyNames"], name)) {
      report(place, "got the key " + quote_json(name) + ", want " + describe(rule["propertyNames"]));
      continue;
    }
    bool known = false;
    if (properties.contains(name)) {
      known = true;
      check(properties[name], member, place);
    }
    for (const auto& [pattern, member_rule] : patterns.items()) {
      if (Pattern(pattern).matches(name)) {
        known = true;
        check(member_rule, member, place);
      }
    }
    if (known || !rule.contains("additionalProperties")) continue;
    const json& others = rule["additionalProperties"];
    if (others.is_object()) {
      check(others, member, place);
    } else if (others == false) {
      report(place, "got an unknown key; " + known_names_hint(name, keys_of(properties), "keys"));
    }
  }
  for (const json& name : rule.value("required", json::array())) {
    const std::string& key = name.get_ref<const std::string&>();
    if (value.contains(key)) continue;
    const std::string want = properties.contains(key) ? describe(properties[key]) : "a value";
    report(child_pointer(pointer, key), "got nothing, want " + want);
  }
}

void SchemaChecker::check_one_of(const json& rule, const json& value, const std::string& pointer) {
  json branches = json::array();
  for (const json& branch : rule["oneOf"]) {
    branches.push_back(branch.contains("$ref") ? schema_.resolve(branch) : branch);
  }
  const auto passing = std::count_if(branches.begin(), branches.end(),
                                     [this, &value](const json& branch) { return passes(branch, value); });
  if (passing == 1) return;
  const bool by_members = std::all_of(branches.begin(), branches.end(), [](const json& branch) {
    return branch.size() == 1 && branch.contains("required");
  });
  if (by_members) {
    std::vector<std::string> sets;
    for (const json& branch : branches) sets.push_back(required_members(branch, ""));
    std::vector<std::string> got;
    for (const auto& [name, member] : value.items()) got.push_back(quote_json(name));
    report(pointer, "got " + (got.empty() ? "no members" : join(got, ", ")) + ", want exactly one of " + join_or(sets));
    return;
  }
  const std::string tag = tag_of(branches);
  if (passing == 0 && value.is_object() && !tag.empty()) {
    check_tagged(tag, branches, value, pointer);
  } else {
    report(pointer, "got " + quote_json(value) + ", want " + describe(rule));
  }
}

void SchemaChecker::check_tagged(const std::string& tag, const json& branches, const json& value,
                                 const std::string& pointer) {
  std::vector<const json*> candidates;
  std::vector<std::string> tags;
  for (const json& branch : branches) {
    const json& constant = branch["properties"][tag]["const"];
    if (std::find(tags.begin(), tags.end(), constant.get<std::string>()) == tags.end()) tags.push_back(constant);
    if (value.contains(tag) && value[tag] == constant) candidates.push_back(&branch);
  }
  if (candidates.empty()) {
    std::string message = "got " + (value.contains(tag) ? quote_json(value[tag]) : std::string("nothing")) +
                          ", want one of " + join(quoted(tags), ", ");
    if (value.contains(tag) && value[tag].is_string()) {
      const std::string nearest = nearest_name(value[tag].get_ref<const std::string&>(), tags);
      if (!nearest.empty()) message += "; did you mean \"" + nearest + "\"?";
    }
    report(child_pointer(pointer, tag), std::move(message));
    return;
  }
  // Several ways to say one thing: the members that only one of them has tell which was meant.
  std::vector<const json*> meant;
  for (const json* candidate : candidates) {
    for (const auto& [name, member] : value.items()) {
      const auto knows = [&name = name](const json* branch) { return (*branch)["properties"].contains(name); };
      if (knows(candidate) && std::count_if(candidates.begin(), candidates.end(), knows) == 1) {
        meant.push_back(candidate);
        break;
      }
    }
  }
  if (candidates.size() == 1) meant = candidates;
  if (meant.size() == 1) {
    check(*meant[0], value, pointer);
    return;
  }
  std::vector<std::string> sets;
  for (const json* candidate : candidates) sets.push_back(required_members(*candidate, tag));
  report(pointer, "got " + quote_json(value) + ", want either " + join(sets, ", or "));
}

std::string SchemaChecker::describe(const json& rule) const {
  if (rule.contains("$ref")) return describe(schema_.resolve(rule));
  if (rule.contains("const")) return quote_json(rule["const"]);
  if (rule.contains("enum")) return "one of " + join(quoted(rule["enum"]), ", ");
  if (rule.contains("anyOf") || rule.contains("pattern")) {
    if (rule.contains("title")) return rule["title"].get<std::string>();
    if (rule.contains("pattern")) return "text that matches " + rule["pattern"].get<std::string>();
    std::vector<std::string> ways;
    for (const json& branch : rule["anyOf"]) ways.push_back(describe(branch));
    return join_or(ways);
  }
  if (rule.contains("oneOf") && !rule.contains("type")) {
    std::vector<std::string> ways;
    for (const json& branch : rule["oneOf"]) ways.push_back(describe(branch));
    const std::string tag = tag_of(rule["oneOf"]);
    if (tag.empty()) return join_or(ways);
    std::vector<std::string> tags;
    for (const json& branch : rule["oneOf"]) {
      const std::string constant = quote_json(branch["properties"][tag]["const"]);
      if (std::find(tags.begin(), tags.end(), constant) == tags.end()) tags.push_back(constant);
    }
    return rule.value("title", "an object") + ": an object with \"" + tag + "\" " + join_or(tags);
  }
  if (!rule.contains("type")) return "a value";
  const json types = rule["type"].is_string() ? json::array({rule["type"]}) : rule["type"];
  std::vector<std::string> words;
  for (const json& type : types) {
    std::string word = type_in_words(type.get<std::string>());
    if (type == "integer" || type == "number") word += range_in_words(rule);
    if (type == "string" && rule.value("minLength", 0) > 0) word += " that is not empty";
    if (type == "array" && rule.value("minItems", 0) > 0) word += " that is not empty";
    words.push_back(std::move(word));
  }
  return join_or(words);
}

}  // namespace droptest::experiments
