// SPDX-License-Identifier: Apache-2.0
// The rules of a kind of JSON documents: interprets schema files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/json/pattern.h"

namespace droptest::comm {

/// One broken rule.
struct Violation {
  std::string pointer;  ///< JSON pointer of the value, "" for the whole document
  std::string message;  ///< "got VALUE, want ..."
};

/// Whether members that a schema does not name are violations if the schema forbids them (additionalProperties). A
/// later version of a record may have more members.
enum class UnknownMembers : std::uint8_t { kRefused, kAllowed };

/// The keywords of one rule that decide about a value, looked up once; null: the rule does not have this keyword.
struct RuleParts {
  /// The JSON types that the keyword `type`, a name or a list of names, allows.
  struct Types {
    bool null = false;
    bool boolean = false;
    bool string = false;
    bool array = false;
    bool object = false;
    bool number = false;
    bool integer = false;
  };
  const nlohmann::json* target = nullptr;  ///< the rule that $ref refers to
  std::optional<Types> types;
  const nlohmann::json* constant = nullptr;
  const nlohmann::json* known = nullptr;  ///< values of enum
  const nlohmann::json* minimum = nullptr;
  const nlohmann::json* maximum = nullptr;
  const nlohmann::json* above = nullptr;  ///< value of exclusiveMinimum
  const nlohmann::json* below = nullptr;  ///< value of exclusiveMaximum
  const nlohmann::json* multiple_of = nullptr;
  const nlohmann::json* min_length = nullptr;
  const nlohmann::json* max_length = nullptr;
  const Pattern* pattern = nullptr;
  const nlohmann::json* properties = nullptr;
  /// Patterns of member names with their rules.
  std::vector<std::pair<const Pattern*, const nlohmann::json*>> pattern_properties;
  const nlohmann::json* property_names = nullptr;
  const nlohmann::json* additional_properties = nullptr;
  const nlohmann::json* required = nullptr;
  const nlohmann::json* items = nullptr;
  const nlohmann::json* min_items = nullptr;
  const nlohmann::json* one_of = nullptr;
  const nlohmann::json* any_of = nullptr;
  const nlohmann::json* words = nullptr;  ///< value of x-words
};

/// Schema files that refer to each other.
class SchemaFiles {
 public:
  /// `files` have a name and contents each. Throws: CheckError for a keyword, pattern or reference that this
  /// interpreter does not know.
  explicit SchemaFiles(std::vector<std::pair<std::string, nlohmann::json>> files);
  ~SchemaFiles();
  SchemaFiles(const SchemaFiles&) = delete;
  SchemaFiles& operator=(const SchemaFiles&) = delete;

  /// The rule at "file#/pointer" or the file "file". Throws: CheckError if there is none.
  const nlohmann::json& find(const std::string& reference) const;
  /// The keywords of `rule`, a part of these files.
  const RuleParts& parts(const nlohmann::json& rule) const { return parts_.at(&rule); }

 private:
  void prepare(nlohmann::json& rule, const std::string& file, const std::string& place);
  void note_parts(const nlohmann::json& rule);

  std::vector<std::pair<std::string, nlohmann::json>> files_;
  std::unordered_map<const nlohmann::json*, RuleParts> parts_;  ///< keywords of every object in the files
  std::map<std::string, Pattern, std::less<>> patterns_;        ///< patterns by their texts
};

/// The part of JSON Schema, draft 2020-12, that our files use.
class Schema {
 public:
  /// Checks documents against `file`, one of the files; all schemas of these files share them.
  Schema(std::shared_ptr<const SchemaFiles> files, const std::string& file)
      : files_(std::move(files)), root_(&files_->find(file)) {}

  /// All violations, in document order; empty: valid.
  std::vector<Violation> check(const nlohmann::json& document, UnknownMembers unknown = UnknownMembers::kRefused) const;

  /// The document with the words of the schema in place of other words for the same values: "bf16" becomes "bfloat16".
  nlohmann::json with_one_word(nlohmann::json document) const;

  /// The document with every absent member that has a `default` written out, and every number in the form of its rule:
  /// 8.0 of an integer becomes 8, and 1 of a number becomes 1.0. `document` is valid. `pointer`: the document is the
  /// value of that member of one.
  nlohmann::json with_defaults(const nlohmann::json& document, const std::string& pointer = "") const;

  /// The reason why no valid document can have a member there; empty: it may exist.
  std::string unknown_pointer(const std::vector<std::string>& tokens) const;

  /// The values of a keyword of this schema's members, by JSON pointer of the member. References and alternatives are
  /// followed; entries of lists and members without a name of their own are not. A member's own keyword goes before
  /// that of the rule that it refers to.
  std::map<std::string, nlohmann::json> annotations(const char* keyword) const;

  /// The schema itself, with absolute references.
  const nlohmann::json& source() const { return *root_; }

 private:
  void complete(const nlohmann::json& rule, nlohmann::json& value) const;
  class Annotations;
  void replace_words(const nlohmann::json& rule, nlohmann::json& value) const;

  std::shared_ptr<const SchemaFiles> files_;
  const nlohmann::json* root_;  ///< the rule of the file; like all rules, a part of the files
};

/// Throws: one ConfigError with a line for each error, if there are any; they are complete messages.
void require_none(const std::vector<std::string>& errors);

/// require_none() with lines "<where>: <pointer>: got VALUE, want ...".
void require_none(const std::vector<Violation>& violations, const std::string& where);

/// require_none() for the violations of a document.
void require_valid(const Schema& schema, const nlohmann::json& document, const std::string& where);

}  // namespace droptest::comm
