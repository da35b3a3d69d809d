// SPDX-License-Identifier: Apache-2.0
// The members of a section of a spec as the struct of the section lists them: read from JSON, and written as JSON.
// Such a struct has a visit_members(visit), which calls visit(name, value) for each member:
//   visit("every_steps", every_steps);                                    a number, text, struct, list or optional
//   visit("links", links, {{"omit", Links::kOmit}, {"include", ...}});    an enumerator, with the word for each value
//   visit("retries", [&](const auto& inner) { inner("attempts", attempts); });    an object without a struct
// A new plain member of a spec needs its entry in the schema, the struct's member with such a line, and its use.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/error.h"

namespace droptest::experiments {

/// The words of a spec, texts or booleans, for values of an enumeration.
template <class Value>
using MemberWords = std::initializer_list<std::pair<nlohmann::json, std::type_identity_t<Value>>>;

namespace section_members {
template <class T>
inline constexpr bool kIsList = false;
template <class T>
inline constexpr bool kIsList<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
}  // namespace section_members

/// Reads a section, an object of a spec with defaults. An absent member leaves the value of the struct as it is. A text
/// in the place of an object is the object's `kind`, and a value in the place of a list is the list's only element.
class MemberReader {
 public:
  explicit MemberReader(const nlohmann::json& section) : section_(section) {}

  template <class T>
  void operator()(const char* name, T&& value) const {
    if (const nlohmann::json* member = find(name)) read(*member, value);
  }
  template <class Value>
  void operator()(const char* name, Value& value, MemberWords<Value> words) const {
    const nlohmann::json* member = find(name);
    if (member == nullptr) return;
    const auto known = std::find_if(words.begin(), words.end(), [&](const auto& one) { return one.first == *member; });
    DROPTEST_CHECK(known != words.end(), std::string(name) + ": no value is called " + member->dump());
    value = known->second;
  }

 private:
  const nlohmann::json* find(std::string_view name) const {
    DROPTEST_CHECK(section_.is_object() || section_.is_string(), section_.dump() + " in the place of a section");
    if (!section_.is_object()) return name == "kind" ? &section_ : nullptr;
    const auto member = section_.find(name);
    return member == section_.end() ? nullptr : &*member;
  }

  template <class T>
  static void read(const nlohmann::json& member, T& value) {
    if constexpr (requires { value.visit_members(MemberReader(member)); }) {
      value.visit_members(MemberReader(member));
    } else if constexpr (std::is_invocable_v<T&, const MemberReader&>) {
      value(MemberReader(member));
    } else if constexpr (section_members::kIsOptional<T>) {
      read(member, value.emplace());
    } else if constexpr (section_members::kIsList<T>) {
      value.clear();
      if (!member.is_array()) return read(member, value.emplace_back());
      for (const nlohmann::json& element : member) read(element, value.emplace_back());
    } else if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
      value = T(static_cast<std::int64_t>(std::ceil(member.get<double>() * 1000)));  // a spec has seconds
    } else {
      value = member.get<T>();
    }
  }

  const nlohmann::json& section_;
};

/// Writes the members of a struct. An absent optional, and an enumerator without a word, are left out.
class MemberWriter {
 public:
  explicit MemberWriter(nlohmann::json& section) : section_(section) {}

  template <class T>
  void operator()(const char* name, T&& value) const {
    nlohmann::json written = json_of(value);
    if (!written.is_null()) section_[name] = std::move(written);
  }
  template <class Value>
  void operator()(const char* name, Value& value, MemberWords<Value> words) const {
    const auto known = std::find_if(words.begin(), words.end(), [&](const auto& one) { return one.second == value; });
    if (known != words.end()) section_[name] = known->first;
  }

 private:
  template <class T>
  static nlohmann::json json_of(T& value) {
    nlohmann::json written;
    if constexpr (requires { value.visit_members(MemberWriter(written)); }) {
      written = nlohmann::json::object();
      value.visit_members(MemberWriter(written));
    } else if constexpr (std::is_invocable_v<T&, const MemberWriter&>) {
      written = nlohmann::json::object();
      value(MemberWriter(written));
    } else if constexpr (section_members::kIsOptional<T>) {
      if (value) written = json_of(*value);
    } else if constexpr (section_members::kIsList<T>) {
      written = nlohmann::json::array();
      for (auto& element : value) written.push_back(json_of(element));
    } else if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
      written = static_cast<double>(value.count()) / 1000;
    } else {
      written = value;
    }
    return written;
  }

  nlohmann::json& section_;
};

/// Sets the members of a struct to those of a section.
template <class Section>
void read_members(const nlohmann::json& section, Section& members) {
  members.visit_members(MemberReader(section));
}

/// The members of a struct as a section of a spec.
template <class Section>
nlohmann::json members_json(Section members) {
  nlohmann::json section = nlohmann::json::object();
  members.visit_members(MemberWriter(section));
  return section;
}

}  // namespace droptest::experiments
