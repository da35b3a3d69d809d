// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/schema_kinds.h"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/spec/network_schema.h"
#include "experiments/spec/embedded_schemas.h"
#include "experiments/spec/resolved_schema.h"
#include "sim/error.h"

namespace droptest::experiments {

using nlohmann::json;

std::span<const std::pair<std::string_view, SchemaKind>> schema_names() {
  static constexpr std::array<std::pair<std::string_view, SchemaKind>, 15> kNames = {{
      {"spec", SchemaKind::kSpec},
      {"resolved_spec", SchemaKind::kResolvedSpec},
      {"metrics", SchemaKind::kMetrics},
      {"loss_statistics", SchemaKind::kLossStatistics},
      {"summary", SchemaKind::kSummary},
      {"sweep", SchemaKind::kSweep},
      {"search", SchemaKind::kSearch},
      {"diagnostics", SchemaKind::kDiagnostics},
      {"checkpoint", SchemaKind::kCheckpoint},
      {"slurm_array", SchemaKind::kSlurmArray},
      {"slurm_task", SchemaKind::kSlurmTask},
      {"shards", SchemaKind::kShards},
      {"event", SchemaKind::kEvent},
      {"trace", SchemaKind::kTrace},
      {"predictions", SchemaKind::kPredictions},
  }};
  return kNames;
}

json schema_document(std::string_view name) {
  if (name == "resolved_spec") return resolved_schema(schema_document("spec"));
  const std::string file = std::string(name) + ".schema.json";
  const auto& schemas = embedded_schemas();
  const auto found =
      std::find_if(schemas.begin(), schemas.end(), [&file](const auto& one) { return one.first == file; });
  DROPTEST_CHECK(found != schemas.end(), "no schema " + file);
  json document = comm::parse_json(found->second, "schema " + file);
  if (name != "spec") return document;
  const json network = comm::network_schema_document();
  for (const char* part : {"properties", "$defs"}) {
    document[part].insert(network[part].begin(), network[part].end());  // keeps the members of the spec's own file
  }
  return document;
}

const comm::Schema& schema_of(SchemaKind kind) {
  static const std::vector<comm::Schema> kSchemas = [] {
    std::vector<std::pair<std::string, json>> files;
    const json spec = schema_document("spec");  // parsed once for two kinds
    for (const auto& [name, of_kind] : schema_names()) {
      json document = name == "spec" ? spec : name == "resolved_spec" ? resolved_schema(spec) : schema_document(name);
      files.emplace_back(std::string(name) + ".schema.json", std::move(document));
    }
    const auto shared = std::make_shared<const comm::SchemaFiles>(std::move(files));
    std::vector<comm::Schema> schemas;
    for (const auto& [name, of_kind] : schema_names()) schemas.emplace_back(shared, std::string(name) + ".schema.json");
    return schemas;
  }();
  return kSchemas.at(static_cast<std::size_t>(kind));
}

}  // namespace droptest::experiments
