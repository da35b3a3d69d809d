// SPDX-License-Identifier: Apache-2.0
// The rules of specs and records: interprets the JSON schemas of experiments/schema/, which are part of the binary.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "experiments/spec/pattern.h"

namespace droptest::experiments {

/// The files of experiments/schema/, and the schema of resolved specs.
enum class SchemaKind : std::uint8_t {
  kSpec,
  kResolvedSpec,
  kMetrics,
  kLossStatistics,
  kSummary,
  kSweep,
  kSearch,
  kDiagnostics,
};

/// One broken rule.
struct Violation {
  std::string pointer;  ///< JSON pointer of the value, "" for the whole document
  std::string message;  ///< "got VALUE, want ..."
};

/// JSON Schema, draft 2020-12, the part of it that our files use.
class Schema {
 public:
  /// `files`: all schemas that $ref may name, by file name. `file`: the one to check documents against.
  /// Throws: CheckError for a keyword, pattern or reference that this interpreter does not know.
  Schema(std::vector<std::pair<std::string, nlohmann::json>> files, std::string_view file);
  Schema(Schema&&) = default;

  /// All violations, in document order; empty: valid.
  std::vector<Violation> check(const nlohmann::json& document) const;

  /// The document with every absent member that has a `default` written out, and every number in the form that its
  /// rule names: 8.0 of an integer becomes 8, 1 of a number 1.0. `document` is valid.
  nlohmann::json with_defaults(const nlohmann::json& document) const;

  /// Why no valid document can have a member there, in words; empty: it may exist.
  std::string unknown_pointer(const std::vector<std::string>& tokens) const;

  /// The schema itself, with absolute references.
  const nlohmann::json& source() const { return *root_; }

 private:
  friend class SchemaChecker;
  const nlohmann::json& find(const std::string& reference) const;
  void prepare(nlohmann::json& rule, const std::string& file, const std::string& place);
  void follow_references(const nlohmann::json& rule);
  /// What the $ref of a rule of this schema leads to.
  const nlohmann::json& resolve(const nlohmann::json& rule) const { return *references_.at(&rule); }
  void complete(const nlohmann::json& rule, nlohmann::json& value) const;

  std::vector<std::pair<std::string, nlohmann::json>> files_;
  const nlohmann::json* root_ = nullptr;  ///< in files_, as all rules
  std::unordered_map<const nlohmann::json*, const nlohmann::json*> references_;
  std::map<std::string, Pattern, std::less<>> patterns_;  ///< by their texts
};

/// The schema of that kind.
const Schema& schema_of(SchemaKind kind);

/// "resolved_spec" -> SchemaKind::kResolvedSpec, and so on; in the order of the kinds.
std::span<const std::pair<std::string_view, SchemaKind>> schema_names();

/// The schema of that name as a document of its own. Throws: CheckError for a name that schema_names() does not have.
nlohmann::json schema_document(std::string_view name);

/// Throws: ConfigError with a line "<where>: <pointer>: got VALUE, want ..." for each violation.
void require_valid(SchemaKind kind, const nlohmann::json& document, const std::string& where);

/// One ConfigError of all violations. Throws: always.
[[noreturn]] void throw_violations(const std::vector<Violation>& violations, const std::string& where);

}  // namespace droptest::experiments
