// SPDX-License-Identifier: Apache-2.0
// Checks one document against one schema; used by schema.h.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/spec/schema.h"

namespace droptest::experiments {

/// Collects violations. Every broken rule is reported once, at the innermost value that breaks it.
class SchemaChecker {
 public:
  /// `schema` is borrowed.
  explicit SchemaChecker(const Schema& schema) : schema_(schema) {}

  /// Checks `value`, which is at `pointer` of its document, against `rule`, a schema or a part of one.
  void check(const nlohmann::json& rule, const nlohmann::json& value, const std::string& pointer);

  /// The values that a rule allows, in words: "an integer in [1, 8]".
  std::string describe(const nlohmann::json& rule) const;

  std::vector<Violation> take() { return std::move(violations_); }
  bool valid() const { return violations_.empty(); }

 private:
  void check_members(const nlohmann::json& rule, const nlohmann::json& value, const std::string& pointer);
  void check_one_of(const nlohmann::json& rule, const nlohmann::json& value, const std::string& pointer);
  void check_tagged(const std::string& tag, const nlohmann::json& branches, const nlohmann::json& value,
                    const std::string& pointer);
  bool passes(const nlohmann::json& rule, const nlohmann::json& value) const;
  bool scalar_rules_hold(const nlohmann::json& rule, const nlohmann::json& value) const;
  void report(const std::string& pointer, std::string message);

  const Schema& schema_;
  std::vector<Violation> violations_;
};

/// The property that every branch of a oneOf fixes to a constant; empty where there is none.
std::string tag_of(const nlohmann::json& branches);

/// Whether `value` has the JSON type of that name; 8.0 is an integer, as JSON Schema has it.
bool has_type(const nlohmann::json& value, std::string_view type);

/// pointer + "/" + name, escaped.
std::string child_pointer(const std::string& pointer, const std::string& name);

}  // namespace droptest::experiments
