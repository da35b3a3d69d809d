// SPDX-License-Identifier: Apache-2.0
#include "comm/json/schema.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "comm/json/json_text.h"
#include "comm/json/nearest_name.h"
#include "comm/json/schema_checker.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

using nlohmann::json;

/// The known keywords. A keyword that is not listed is an error, because nothing would check it.
const std::set<std::string, std::less<>>& known_keywords() {
  static const std::set<std::string, std::less<>> kKeywords = {
      "$schema",
      "$ref",
      "$defs",
      "title",
      "description",
      "default",
      "type",
      "enum",
      "const",
      "minimum",
      "maximum",
      "exclusiveMinimum",
      "multipleOf",
      "minLength",
      "maxLength",
      "pattern",
      "exclusiveMaximum",
      "properties",
      "required",
      "propertyNames",
      "items",
      "minItems",
      "additionalProperties",
      "oneOf",
      "anyOf",
      "patternProperties",
      "x-planned",    // name -> description of a planned member; until it is built there is none
      "x-resolved",   // the difference of the rule in documents with all defaults written out (experiments/spec)
      "x-words",      // another word for a value of `enum` -> that value, which the word stands for
      "x-identity",   // the runs that the member is a part of the identity of (experiments/spec/run_id.cc)
      "x-sent-with",  // the members of a run's spec with which it sends packets of the traffic class
      "x-synonyms",   // a common wrong value -> the value of `enum` to suggest
  };
  return kKeywords;
}

/// The types that the value of the keyword `type` names.
RuleParts::Types types_of(const json& names) {
  using Types = RuleParts::Types;
  static const std::map<std::string, bool Types::*, std::less<>> kByName = {
      {"null", &Types::null},     {"boolean", &Types::boolean}, {"string", &Types::string},  {"array", &Types::array},
      {"object", &Types::object}, {"number", &Types::number},   {"integer", &Types::integer}};
  Types types;
  const auto add = [&types](const json& name) {
    const auto known = name.is_string() ? kByName.find(name.get_ref<const std::string&>()) : kByName.end();
    if (known != kByName.end()) types.*known->second = true;  // else it is part of a value, such as a default
  };
  if (names.is_array()) {
    for (const json& name : names) add(name);
  } else {
    add(names);
  }
  return types;
}

/// Whether a step of a JSON pointer can be the index of a list's element. Source: RFC 6901, section 4.
bool is_index(const std::string& token) {
  return !token.empty() && token.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

/// Makes references absolute ("file#/pointer"), and checks that this interpreter supports all of a schema.
void SchemaFiles::prepare(json& rule, const std::string& file, const std::string& place) {
  const auto require = [&file, &place](bool condition, const std::string& what) {
    DROPTEST_CHECK(condition, "schema " + file + ": " + place + ": " + what);
  };
  require(rule.is_object(), "a schema is an object");
  for (auto& [keyword, value] : rule.items()) {
    require(known_keywords().contains(keyword), "the keyword \"" + keyword + "\" is not supported");
    const std::string inner = place + "/" + keyword;
    if (keyword == "$ref") {
      const std::string target = value.get<std::string>();
      if (target.starts_with('#')) value = file + target;
    } else if (keyword == "properties" || keyword == "$defs" || keyword == "patternProperties") {
      for (auto& [name, member] : value.items()) {
        if (keyword == "patternProperties") patterns_.try_emplace(name, name);
        prepare(member, file, child_pointer(inner, name));
      }
    } else if (keyword == "oneOf" || keyword == "anyOf") {
      require(value.is_array() && !value.empty(), keyword + " is a list that is not empty");
      for (json& branch : value) prepare(branch, file, inner);
    } else if (keyword == "items" || keyword == "propertyNames") {
      prepare(value, file, inner);
    } else if (keyword == "additionalProperties") {
      require(value.is_object() || value.is_boolean(), "additionalProperties is a schema, true or false");
      if (value.is_object()) prepare(value, file, inner);
    } else if (keyword == "pattern") {
      patterns_.try_emplace(value.get<std::string>(), value.get<std::string>());
    } else if (keyword == "type") {
      static const std::set<std::string> kTypes = {"null", "boolean", "string", "array", "object", "number", "integer"};
      const json types = value.is_string() ? json::array({value}) : value;
      for (const json& type : types) require(kTypes.contains(type.get<std::string>()), "type " + type.dump());
    }
  }
}

void SchemaFiles::note_parts(const json& rule) {
  if (rule.is_object()) {
    RuleParts& parts = parts_[&rule];
    const std::pair<const char*, const json * RuleParts::*> keywords[] = {
        {"const", &RuleParts::constant},
        {"enum", &RuleParts::known},
        {"minimum", &RuleParts::minimum},
        {"maximum", &RuleParts::maximum},
        {"exclusiveMinimum", &RuleParts::above},
        {"exclusiveMaximum", &RuleParts::below},
        {"multipleOf", &RuleParts::multiple_of},
        {"minLength", &RuleParts::min_length},
        {"maxLength", &RuleParts::max_length},
        {"properties", &RuleParts::properties},
        {"propertyNames", &RuleParts::property_names},
        {"additionalProperties", &RuleParts::additional_properties},
        {"required", &RuleParts::required},
        {"items", &RuleParts::items},
        {"minItems", &RuleParts::min_items},
        {"oneOf", &RuleParts::one_of},
        {"anyOf", &RuleParts::any_of},
        {"x-words", &RuleParts::words},
    };
    for (const auto& [keyword, part] : keywords) {
      const auto found = rule.find(keyword);
      if (found != rule.end()) parts.*part = &*found;
    }
    if (const auto type = rule.find("type"); type != rule.end()) parts.types = types_of(*type);
    if (const auto pattern = rule.find("pattern"); pattern != rule.end() && pattern->is_string()) {
      parts.pattern = &patterns_.at(pattern->get_ref<const std::string&>());
    }
    if (const auto by_pattern = rule.find("patternProperties"); by_pattern != rule.end()) {
      for (const auto& [pattern, member] : by_pattern->items()) {
        parts.pattern_properties.emplace_back(&patterns_.at(pattern), &member);
      }
    }
    const auto reference = rule.find("$ref");
    if (reference != rule.end() && reference->is_string()) {
      parts.target = &find(reference->get_ref<const std::string&>());
    }
  }
  if (rule.is_structured()) {
    for (const json& part : rule) note_parts(part);
  }
}

SchemaFiles::SchemaFiles(std::vector<std::pair<std::string, json>> files) : files_(std::move(files)) {
  for (auto& [name, schema] : files_) prepare(schema, name, "");
  for (const auto& [name, schema] : files_) note_parts(schema);
}

SchemaFiles::~SchemaFiles() = default;

const json& SchemaFiles::find(const std::string& target) const {
  const std::size_t hash = target.find('#');
  const std::string file = target.substr(0, hash);
  const auto found =
      std::find_if(files_.begin(), files_.end(), [&file](const auto& entry) { return entry.first == file; });
  DROPTEST_CHECK(found != files_.end(), "schema reference " + target + ": no such file");
  const json::json_pointer pointer(hash == std::string::npos ? "" : target.substr(hash + 1));
  DROPTEST_CHECK(found->second.contains(pointer), "schema reference " + target + ": no such definition");
  const json& result = found->second.at(pointer);
  DROPTEST_CHECK(!result.contains("$ref") || result["$ref"] != target, "schema reference " + target + " is a loop");
  return result;
}

std::vector<Violation> Schema::check(const json& document, UnknownMembers unknown) const {
  SchemaChecker checker(*files_, unknown);
  if (checker.passes(*root_, document)) return {};  // needs no places and texts of violations
  checker.check(*root_, document, "");
  return checker.take();
}

void Schema::complete(const json& rule, json& value) const {
  const RuleParts& parts = files_->parts(rule);
  if (parts.target != nullptr) complete(*parts.target, value);
  for (const json* alternatives : {parts.one_of, parts.any_of}) {
    if (alternatives == nullptr) continue;
    for (const json& branch : *alternatives) {
      if (!SchemaChecker(*files_).passes(branch, value)) continue;
      complete(branch, value);
      break;
    }
  }
  if (value.is_number() && parts.types && !rule.at("type").is_array()) {
    if (parts.types->number) value = value.get<double>() + 0.0;
    if (parts.types->integer && value.is_number_float()) {
      const double number = value.get<double>();
      if (number < 0) {
        value = static_cast<std::int64_t>(number);
      } else {
        value = static_cast<std::uint64_t>(number);
      }
    }
  }
  if (value.is_array() && parts.items != nullptr) {
    for (json& item : value) complete(*parts.items, item);
  }
  if (!value.is_object()) return;
  if (parts.properties != nullptr) {
    for (const auto& [name, property] : parts.properties->items()) {
      auto member = value.find(name);
      if (member == value.end()) {
        const auto otherwise = property.find("default");
        if (otherwise == property.end()) continue;
        member = value.emplace(name, *otherwise).first;
      }
      complete(property, *member);
    }
  }
  if (parts.additional_properties != nullptr && parts.additional_properties->is_object()) {
    for (auto& [name, member] : value.items()) {
      if (parts.properties == nullptr || !parts.properties->contains(name)) {
        complete(*parts.additional_properties, member);
      }
    }
  }
}

void Schema::replace_words(const json& rule, json& value) const {
  const RuleParts& parts = files_->parts(rule);
  if (parts.target != nullptr) replace_words(*parts.target, value);
  if (parts.words != nullptr && value.is_string()) {
    const auto word = parts.words->find(value.get_ref<const std::string&>());
    if (word != parts.words->end()) value = *word;
  }
  for (const json* alternatives : {parts.one_of, parts.any_of}) {
    if (alternatives == nullptr) continue;
    for (const json& branch : *alternatives) replace_words(branch, value);
  }
  if (value.is_array() && parts.items != nullptr) {
    for (json& item : value) replace_words(*parts.items, item);
  }
  if (!value.is_object()) return;
  for (auto& [name, member] : value.items()) {
    if (parts.properties != nullptr && parts.properties->contains(name)) {
      replace_words((*parts.properties)[name], member);
    } else if (parts.additional_properties != nullptr && parts.additional_properties->is_object()) {
      replace_words(*parts.additional_properties, member);
    }
  }
}

json Schema::with_one_word(json document) const {
  replace_words(*root_, document);
  return document;
}

json Schema::with_defaults(const json& document, const std::string& pointer) const {
  json::json_pointer place;
  for (json::json_pointer rest(pointer); !rest.empty(); rest.pop_back()) {
    place = json::json_pointer("/properties") / rest.back() / place;
  }
  json result = document;
  complete(root_->at(place), result);
  return result;
}

class Schema::Annotations {
 public:
  Annotations(const SchemaFiles& files, const char* keyword) : files_(files), keyword_(keyword) {}

  /// Adds the annotations of the member at a pointer, which has this rule, and of the members in it. Returns whether
  /// there are any.
  bool add(const json& rule, const std::string& at) {
    if (silent_.contains(&rule) || !path_.insert(&rule).second) return false;
    const RuleParts& parts = files_.parts(rule);
    bool has_some = rule.contains(keyword_);
    if (has_some) found.emplace(at, rule[keyword_]);
    if (parts.target != nullptr && add(*parts.target, at)) has_some = true;
    for (const json* alternatives : {parts.one_of, parts.any_of}) {
      if (alternatives == nullptr) continue;
      for (const json& branch : *alternatives) has_some = add(branch, at) || has_some;
    }
    if (parts.properties != nullptr) {
      for (const auto& [name, member] : parts.properties->items()) {
        has_some = add(member, child_pointer(at, name)) || has_some;
      }
    }
    path_.erase(&rule);
    if (!has_some) silent_.insert(&rule);
    return has_some;
  }

  std::map<std::string, json> found;

 private:
  const SchemaFiles& files_;
  const char* keyword_;
  std::set<const json*> path_;    ///< the rules that contain the one at hand: a rule may contain itself
  std::set<const json*> silent_;  ///< rules without annotations
};

std::map<std::string, json> Schema::annotations(const char* keyword) const {
  Annotations annotations(*files_, keyword);
  annotations.add(*root_, "");
  return std::move(annotations.found);
}

std::string Schema::unknown_pointer(const std::vector<std::string>& tokens) const {
  // All schemas that may describe the value reached so far: references and alternatives are followed.
  const std::function<void(const json&, std::vector<const json*>&)> expand =
      [this, &expand](const json& rule, std::vector<const json*>& out) {
        out.push_back(&rule);
        if (const json* target = files_->parts(rule).target) expand(*target, out);
        for (const char* alternatives : {"oneOf", "anyOf"}) {
          if (!rule.contains(alternatives)) continue;
          for (const json& branch : rule[alternatives]) expand(branch, out);
        }
      };
  std::vector<const json*> here;
  expand(*root_, here);
  std::string pointer;
  for (const std::string& token : tokens) {
    std::vector<const json*> next;
    std::vector<std::string> known;
    bool object = false;
    for (const json* rule : here) {
      const bool has_property = rule->contains("properties") && (*rule)["properties"].contains(token);
      if (rule->contains("properties")) {
        object = true;
        for (const auto& [name, member] : (*rule)["properties"].items()) {
          if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
        }
      }
      if (rule->contains("items") && is_index(token)) {
        object = true;
        expand((*rule)["items"], next);
      }
      if (has_property) {
        expand((*rule)["properties"][token], next);
      } else if (rule->contains("additionalProperties") && (*rule)["additionalProperties"].is_object()) {
        object = true;
        expand((*rule)["additionalProperties"], next);
      }
    }
    const std::string parent = pointer;
    pointer = child_pointer(pointer, token);
    const bool list = std::any_of(here.begin(), here.end(), [](const json* rule) { return rule->contains("items"); });
    if (next.empty() && known.empty() && list) {
      return parent + " is a list: got " + quote_json(token) + ", want the index of an element, from 0";
    }
    if (next.empty()) {
      for (const json* rule : here) {
        if (!rule->contains("x-planned") || !(*rule)["x-planned"].contains(token)) continue;
        return pointer + " is planned, not built: " + (*rule)["x-planned"][token].get<std::string>();
      }
      if (!object) return (parent.empty() ? "the document" : parent) + " has no members";
      return "no member " + quote_json(token) + (parent.empty() ? "" : " in " + parent) + "; " +
             known_names_hint(token, known, "keys");
    }
    here = std::move(next);
  }
  return {};
}

void require_none(const std::vector<std::string>& errors) {
  if (errors.empty()) return;
  std::string text = errors[0];
  for (std::size_t i = 1; i < errors.size(); ++i) text += "\n" + errors[i];
  throw ConfigError(text);
}

void require_none(const std::vector<Violation>& violations, const std::string& where) {
  constexpr std::size_t kMostLines = 50;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < violations.size() && i < kMostLines; ++i) {
    const Violation& violation = violations[i];
    lines.push_back(where + ": " + (violation.pointer.empty() ? "/" : violation.pointer) + ": " + violation.message);
  }
  if (violations.size() > kMostLines) {
    lines.push_back(where + ": and " + std::to_string(violations.size() - kMostLines) + " more");
  }
  require_none(lines);
}

void require_valid(const Schema& schema, const json& document, const std::string& where) {
  require_none(schema.check(document), where);
}

}  // namespace droptest::comm
