// SPDX-License-Identifier: Apache-2.0
// The rules of specs and records: interprets the JSON schemas of experiments/schema/, which are part of the binary.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace droptest::experiments {

/// The files of experiments/schema/.
enum class SchemaKind : std::uint8_t { kSpec, kResolvedSpec, kMetrics, kLossStatistics, kSummary, kSweep };

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

  /// All violations, in document order; empty: valid.
  std::vector<Violation> check(const nlohmann::json& document) const;

  /// The document with every absent member that has a `default` written out, also in objects that were absent
  /// themselves where the object has a default. `document` is valid.
  nlohmann::json with_defaults(const nlohmann::json& document) const;

  /// The pointer's own text where the schema knows no such member: why, in words; empty: it may exist.
  std::string unknown_pointer(const std::vector<std::string>& tokens) const;

  /// The schema itself, for `droptest list` and tests.
  const nlohmann::json& source() const { return root_; }

 private:
  friend class SchemaChecker;
  const nlohmann::json& resolve(const nlohmann::json& schema) const;

  std::vector<std::pair<std::string, nlohmann::json>> files_;
  nlohmann::json root_;
};

/// The embedded schema of that kind.
const Schema& schema_of(SchemaKind kind);

/// File names and texts of the embedded schemas.
const std::vector<std::pair<std::string_view, std::string_view>>& embedded_schemas();

/// Throws: ConfigError with a line "<where>: <pointer>: got VALUE, want ..." for each violation.
void require_valid(SchemaKind kind, const nlohmann::json& document, const std::string& where);

/// One ConfigError of all violations. Throws: always.
[[noreturn]] void throw_violations(const std::vector<Violation>& violations, const std::string& where);

}  // namespace droptest::experiments
