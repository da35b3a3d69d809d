// SPDX-License-Identifier: Apache-2.0
// Checks one document against one schema; used by schema.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/json/schema.h"

namespace droptest::comm {

/// Collects violations. Every broken rule is reported once, at the innermost value that breaks it.
class SchemaChecker {
 public:
  /// `files` are borrowed, and so are the rules below, which are parts of them.
  explicit SchemaChecker(const SchemaFiles& files, UnknownMembers unknown = UnknownMembers::kRefused)
      : files_(files), unknown_(unknown) {}

  /// Checks `value`, which is at `pointer` of its document, against `rule`, a schema or a part of one.
  void check(const nlohmann::json& rule, const nlohmann::json& value, const std::string& pointer);

  /// The values that a rule allows, in words: "an integer in [1, 8]".
  std::string describe(const nlohmann::json& rule) const;

  std::vector<Violation> take() { return std::move(violations_); }

  /// Whether `value` breaks no rule: stops at the first broken rule, and makes no texts.
  bool passes(const nlohmann::json& rule, const nlohmann::json& value) const;

 private:
  enum class Purpose { kReport, kTrial };
  using Branches = std::vector<const nlohmann::json*>;
  SchemaChecker(const SchemaFiles& files, UnknownMembers unknown, Purpose purpose)
      : files_(files), unknown_(unknown), purpose_(purpose) {}

  void check_members(const nlohmann::json& rule, const nlohmann::json& value, const std::string& pointer);
  void check_one_of(const nlohmann::json& rule, const nlohmann::json& value, const std::string& pointer);
  void check_tagged(const std::string& tag, const Branches& branches, const nlohmann::json& value,
                    const std::string& pointer);
  bool scalar_rules_hold(const RuleParts& rule, const nlohmann::json& value) const;
  /// The text of what is wanted, for a value that would not be used as it is written; empty: it would.
  static std::string loss_of(const RuleParts& rule, const nlohmann::json& value);
  /// `message` is called only if its text is needed.
  template <class Message>
  void report(const std::string& pointer, const Message& message);
  std::string place_of(const std::string& pointer, const std::string& name) const;
  bool over() const { return purpose_ == Purpose::kTrial && broken_ > 0; }

  const SchemaFiles& files_;
  const UnknownMembers unknown_;
  const Purpose purpose_ = Purpose::kReport;
  std::size_t broken_ = 0;
  std::vector<Violation> violations_;
};

/// pointer + "/" + name, escaped.
std::string child_pointer(const std::string& pointer, const std::string& name);

}  // namespace droptest::comm
