// SPDX-License-Identifier: Apache-2.0
#include "comm/json/schema_checker.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "comm/json/nearest_name.h"

namespace droptest::comm {
namespace {

using nlohmann::json;

/// The member of an object, or null.
const json* member_of(const json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

/// Whether `value` has one of the JSON types; 8.0 is an integer, as JSON Schema has it.
bool has_type(const json& value, const RuleParts::Types& types) {
  if (value.is_number()) {
    if (types.number) return true;
    return types.integer && (value.is_number_integer() || std::trunc(value.get<double>()) == value.get<double>());
  }
  if (value.is_string()) return types.string;
  if (value.is_object()) return types.object;
  if (value.is_array()) return types.array;
  if (value.is_boolean()) return types.boolean;
  return types.null && value.is_null();
}

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

/// The texts that a rule allows by name, also in one branch of anyOf.
std::vector<std::string> names_of(const json& rule) {
  std::vector<std::string> names;
  for (const json& one : rule.value("enum", json::array())) {
    if (one.is_string()) names.push_back(one.get<std::string>());
  }
  for (const json& branch : rule.value("anyOf", json::array())) {
    const std::vector<std::string> more = names_of(branch);
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

/// The members that a branch requires, except the tag: `"a" and "b"`.
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

/// A range in words: " in [0, 1)", " > 0", or nothing.
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

/// A rule with an anyOf may have keywords of its own. This is their text for the values of one branch: the range of
/// numbers, or the members of objects.
std::string words_beside(const json& rule, const json& branch) {
  const std::string type = branch.value("type", "");
  if (type == "number" || type == "integer") return range_in_words(rule);
  if (type != "object" || !rule.contains("properties")) return {};
  return " of " + join(quoted(keys_of(rule["properties"])), ", ");
}

/// The property that every branch of a oneOf fixes to a constant; empty if there is none.
std::string tag_of(const std::vector<const json*>& branches) {
  if (!branches.at(0)->contains("properties")) return {};
  for (const auto& [name, property] : (*branches[0])["properties"].items()) {
    const bool everywhere = std::all_of(branches.begin(), branches.end(), [&name = name](const json* branch) {
      return branch->contains("properties") && (*branch)["properties"].contains(name) &&
             (*branch)["properties"][name].contains("const");
    });
    if (everywhere) return name;
  }
  return {};
}

}  // namespace

std::string child_pointer(const std::string& pointer, const std::string& name) {
  std::string result = pointer + '/';
  for (const char c : name) {
    if (c == '~') {
      result += "~0";
    } else if (c == '/') {
      result += "~1";
    } else {
      result += c;
    }
  }
  return result;
}

template <class Message>
void SchemaChecker::report(const std::string& pointer, const Message& message) {
  ++broken_;
  if (purpose_ == Purpose::kReport) violations_.push_back({pointer, message()});
}

std::string SchemaChecker::place_of(const std::string& pointer, const std::string& name) const {
  return purpose_ == Purpose::kReport ? child_pointer(pointer, name) : std::string();
}

bool SchemaChecker::passes(const json& rule, const json& value) const {
  SchemaChecker trial(files_, unknown_, Purpose::kTrial);
  trial.check(rule, value, "");
  return trial.broken_ == 0;
}

bool SchemaChecker::scalar_rules_hold(const RuleParts& rule, const json& value) const {
  if (rule.types && !has_type(value, *rule.types)) return false;
  if (rule.constant != nullptr && value != *rule.constant) return false;
  if (rule.known != nullptr && std::find(rule.known->begin(), rule.known->end(), value) == rule.known->end()) {
    return false;
  }
  if (value.is_number()) {
    const long double number = exact(value);
    const auto breaks = [number](const json* limit, const auto& holds) {
      return limit != nullptr && !holds(number, exact(*limit));
    };
    if (breaks(rule.minimum, std::greater_equal<>()) || breaks(rule.maximum, std::less_equal<>())) return false;
    if (breaks(rule.above, std::greater<>()) || breaks(rule.below, std::less<>())) return false;
    if (breaks(rule.multiple_of, [](long double x, long double step) { return std::fmod(x, step) == 0; })) return false;
  }
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (rule.min_length != nullptr && code_points(text) < rule.min_length->get<std::size_t>()) return false;
    if (rule.max_length != nullptr && code_points(text) > rule.max_length->get<std::size_t>()) return false;
    if (rule.pattern != nullptr && !rule.pattern->matches(text)) return false;
  }
  if (value.is_array() && rule.min_items != nullptr && value.size() < rule.min_items->get<std::size_t>()) return false;
  if (rule.any_of != nullptr) {
    return std::any_of(rule.any_of->begin(), rule.any_of->end(),
                       [this, &value](const json& branch) { return passes(branch, value); });
  }
  return true;
}

std::string SchemaChecker::loss_of(const RuleParts& rule, const json& value) {
  if (value.is_string() && value.get_ref<const std::string&>().find('\0') != std::string::npos) {
    return "text without the character U+0000, which ends names of files";
  }
  const bool wants_integer = rule.types && rule.types->integer && !rule.types->number;
  if (wants_integer && value.is_number_float() && std::fabs(value.get<double>()) >= 0x1p53) {
    return "an integer without a point or an exponent, as numbers with one are rounded from 2^53 on";
  }
  return "";
}

void SchemaChecker::check(const json& rule, const json& value, const std::string& pointer) {
  const RuleParts& parts = files_.parts(rule);
  if (parts.target != nullptr) {
    const std::size_t before = broken_;
    check(*parts.target, value, pointer);
    if (broken_ > before) return;
  }
  if (!scalar_rules_hold(parts, value)) {
    report(pointer, [this, &rule, &value] {
      std::string message = "got " + quote_json(value) + ", want " + describe(rule);
      if (value.is_string()) {
        const std::string& got = value.get_ref<const std::string&>();
        const std::string nearest =
            rule.value("x-synonyms", json::object()).value(got, nearest_name(got, names_of(rule)));
        if (!nearest.empty()) message += "; did you mean \"" + nearest + "\"?";
      }
      return message;
    });
    return;
  }
  if (const std::string wanted = loss_of(parts, value); !wanted.empty()) {
    report(pointer, [&] { return "got " + quote_json(value) + ", want " + wanted; });
    return;
  }
  if (value.is_object()) check_members(rule, value, pointer);
  if (parts.items != nullptr && value.is_array()) {
    for (std::size_t i = 0; i < value.size() && !over(); ++i) {
      check(*parts.items, value[i], place_of(pointer, std::to_string(i)));
    }
  }
  if (parts.one_of != nullptr && !over()) check_one_of(rule, value, pointer);
}

void SchemaChecker::check_members(const json& rule, const json& value, const std::string& pointer) {
  static const json kNone = json::object();
  static const json kNoNames = json::array();
  const RuleParts& parts = files_.parts(rule);
  const auto part = [](const json* found, const json& otherwise) -> const json& {
    return found == nullptr ? otherwise : *found;
  };
  const json& properties = part(parts.properties, kNone);
  const json* names = parts.property_names;
  const json* others = parts.additional_properties;
  for (const auto& [name, member] : value.items()) {
    if (over()) return;
    const std::string place = place_of(pointer, name);
    if (names != nullptr && !passes(*names, name)) {
      report(place, [&, &name = name] { return "got the key " + quote_json(name) + ", want " + describe(*names); });
      continue;
    }
    bool known = false;
    if (const json* property = member_of(properties, name)) {
      known = true;
      check(*property, member, place);
    }
    for (const auto& [pattern, member_rule] : parts.pattern_properties) {
      if (pattern->matches(name)) {
        known = true;
        check(*member_rule, member, place);
      }
    }
    if (known || others == nullptr) continue;
    if (others->is_object()) {
      check(*others, member, place);
    } else if (*others == false && unknown_ == UnknownMembers::kRefused) {
      report(place, [&, &name = name] {
        const json& planned = part(member_of(rule, "x-planned"), kNone);
        if (!planned.contains(name)) {
          return "got an unknown key; " + known_names_hint(name, keys_of(properties), "keys");
        }
        return "planned, not built: " + planned[name].get<std::string>() +
               "; known keys: " + join(keys_of(properties), ", ");
      });
    }
  }
  for (const json& name : part(parts.required, kNoNames)) {
    const std::string& key = name.get_ref<const std::string&>();
    if (value.contains(key)) continue;
    report(place_of(pointer, key), [&] {
      const json* property = member_of(properties, key);
      return "got nothing, want " + (property == nullptr ? "a value" : describe(*property));
    });
  }
}

void SchemaChecker::check_one_of(const json& rule, const json& value, const std::string& pointer) {
  Branches branches;
  for (const json& branch : *files_.parts(rule).one_of) {
    const json* target = files_.parts(branch).target;
    branches.push_back(target == nullptr ? &branch : target);
  }
  const auto passing = std::count_if(branches.begin(), branches.end(),
                                     [this, &value](const json* branch) { return passes(*branch, value); });
  if (passing == 1) return;
  if (passing > 1 && unknown_ == UnknownMembers::kAllowed)
    return;  // branches that only the absence of members tells apart
  if (purpose_ == Purpose::kTrial) {
    ++broken_;
    return;
  }
  const bool by_members = std::all_of(branches.begin(), branches.end(), [](const json* branch) {
    return branch->size() == 1 && branch->contains("required");
  });
  if (by_members) {
    std::vector<std::string> sets;
    for (const json* branch : branches) sets.push_back(required_members(*branch, ""));
    std::vector<std::string> got;
    for (const auto& [name, member] : value.items()) got.push_back(quote_json(name));
    report(pointer, [&] {
      return "got " + (got.empty() ? "no members" : join(got, ", ")) + ", want exactly one of " + join_or(sets);
    });
    return;
  }
  const std::string tag = tag_of(branches);
  Branches objects;
  for (const json* branch : branches) {
    if (branch->contains("properties")) objects.push_back(branch);
  }
  if (passing == 0 && value.is_object() && !tag.empty()) {
    check_tagged(tag, branches, value, pointer);
  } else if (passing == 0 && value.is_object() && objects.size() == 1) {
    check(*objects[0], value, pointer);  // no other alternative is an object
  } else {
    report(pointer, [&] { return "got " + quote_json(value) + ", want " + describe(rule); });
  }
}

void SchemaChecker::check_tagged(const std::string& tag, const Branches& branches, const json& value,
                                 const std::string& pointer) {
  Branches candidates;
  std::vector<std::string> tags;
  for (const json* branch : branches) {
    const json& constant = (*branch)["properties"][tag]["const"];
    if (std::find(tags.begin(), tags.end(), constant.get<std::string>()) == tags.end()) tags.push_back(constant);
    if (value.contains(tag) && value[tag] == constant) candidates.push_back(branch);
  }
  if (candidates.empty()) {
    std::string message = "got " + (value.contains(tag) ? quote_json(value[tag]) : std::string("nothing")) +
                          ", want one of " + join(quoted(tags), ", ");
    if (value.contains(tag) && value[tag].is_string()) {
      const std::string nearest = nearest_name(value[tag].get_ref<const std::string&>(), tags);
      if (!nearest.empty()) message += "; did you mean \"" + nearest + "\"?";
    }
    report(child_pointer(pointer, tag), [&message] { return message; });
    return;
  }
  // Several branches have this tag: a member that only one of them has shows the intended branch.
  Branches meant;
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
  report(pointer, [&] { return "got " + quote_json(value) + ", want either " + join(sets, ", or "); });
}

std::string SchemaChecker::describe(const json& rule) const {
  if (rule.contains("const")) return quote_json(rule["const"]);
  if (rule.contains("enum")) return "one of " + join(quoted(rule["enum"]), ", ");
  if (rule.contains("anyOf") || rule.contains("pattern")) {
    // A title in lower case says what is wanted; one that begins with a capital is a heading of the documentation.
    const std::string title = rule.value("title", "");
    if (!title.empty() && (title[0] < 'A' || title[0] > 'Z')) return title;
    if (rule.contains("pattern")) return "text that matches " + rule["pattern"].get<std::string>();
    std::vector<std::string> ways;
    for (const json& branch : rule["anyOf"]) ways.push_back(describe(branch) + words_beside(rule, branch));
    return join(ways, ", or ");
  }
  if (const json* target = files_.parts(rule).target) return describe(*target);
  if (rule.contains("oneOf") && !rule.contains("type")) {
    std::vector<std::string> ways;
    Branches branches;
    for (const json& branch : rule["oneOf"]) {
      ways.push_back(describe(branch));
      branches.push_back(&branch);
    }
    const std::string tag = tag_of(branches);
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

}  // namespace droptest::comm
