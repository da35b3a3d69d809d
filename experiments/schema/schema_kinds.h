// SPDX-License-Identifier: Apache-2.0
// The schemas of specs and records, which are part of the binary.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/json/schema.h"

namespace droptest::experiments {

/// The files of experiments/schema/, and the schema of resolved specs.
enum class SchemaKind : std::uint8_t {
  kSpec,
  kResolvedSpec,
  kCommandSpec,  ///< specs, given and resolved, for the user's own program
  kMetrics,
  kLossStatistics,
  kSummary,
  kSweep,
  kSearch,
  kDiagnostics,
  kCheckpoint,
  kSlurmArray,
  kSlurmTask,
  kShards,
  kEvent,
  kTrace,
  kPredictions,
};

/// The schema of that kind.
const comm::Schema& schema_of(SchemaKind kind);

/// The schema of the document, a spec: kCommandSpec if it has a command, else kSpec.
const comm::Schema& schema_of_spec(const nlohmann::json& document);

/// The violations of a spec's schema. If the spec has a command, members of droptest's own training are named as such.
std::vector<comm::Violation> violations_of_spec(const nlohmann::json& document);

/// "resolved_spec" -> SchemaKind::kResolvedSpec, and so on; in the order of the kinds.
std::span<const std::pair<std::string_view, SchemaKind>> schema_names();

/// The schema of that name; the schema of specs contains the rules of comm/spec/network.schema.json. It may refer to
/// other schemas by file name. Throws: CheckError for a name that schema_names() does not have.
nlohmann::json schema_document(std::string_view name);

/// schema_document() that refers to no other schema: its definitions contain what it needs of others.
/// Throws: CheckError for an unknown name.
nlohmann::json self_contained_schema(std::string_view name);

}  // namespace droptest::experiments
