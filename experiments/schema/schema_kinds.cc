// SPDX-License-Identifier: Apache-2.0
#include "experiments/schema/schema_kinds.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/json/nearest_name.h"
#include "comm/json/schema_checker.h"
#include "comm/spec/network_schema.h"
#include "comm/spec/program_network.h"
#include "experiments/schema/embedded_schemas.h"
#include "experiments/schema/resolved_schema.h"
#include "sim/error.h"

namespace droptest::experiments {

using nlohmann::json;

namespace {

constexpr std::string_view kSuffix = ".schema.json";

std::string file_of(std::string_view schema) { return std::string(schema).append(kSuffix); }

SchemaKind kind_of(std::string_view name) {
  const auto names = schema_names();
  const auto found = std::find_if(names.begin(), names.end(), [name](const auto& one) { return one.first == name; });
  DROPTEST_CHECK(found != names.end(), "no schema " + std::string(name));
  return found->second;
}

/// Makes the references of a schema its own: the rules of other schemas that they refer to become its definitions.
class Adoption {
 public:
  explicit Adoption(std::string_view name) : file_(file_of(name)), document_(schema_of(kind_of(name)).source()) {
    redirect(document_);
    for (auto& [added, rule] : adopted_.items()) document_["$defs"][added] = std::move(rule);
  }
  json take() { return std::move(document_); }

 private:
  void redirect(json& rule) {
    if (!rule.is_structured()) return;
    for (auto& [keyword, part] : rule.items()) {
      if (rule.is_object() && keyword == "$ref" && part.is_string()) {
        part = own_reference(part.get<std::string>());
      } else {
        redirect(part);
      }
    }
  }

  /// `target` is "file#/pointer" or "file".
  std::string own_reference(const std::string& target) {
    const std::size_t hash = std::min(target.find('#'), target.size());
    const std::string file = target.substr(0, hash);
    const std::string pointer = target.substr(std::min(hash + 1, target.size()));
    if (file == file_) return "#" + pointer;
    auto known = names_.find(target);
    if (known == names_.end()) {
      const std::string schema = file.substr(0, file.size() - kSuffix.size());
      std::string name = pointer.empty() ? schema : json::json_pointer(pointer).back();
      if (is_taken(name)) name = schema + "_" + name;
      DROPTEST_CHECK(!is_taken(name), "two definitions of " + file_ + " have the name " + name);
      known = names_.emplace(target, name).first;  // named before its rule, which may refer to itself
      adopted_[name] = nullptr;
      json rule = schema_of(kind_of(schema)).source().at(json::json_pointer(pointer));
      for (const char* of_files : {"$schema", "$defs"}) rule.erase(of_files);
      redirect(rule);
      adopted_[name] = std::move(rule);
    }
    return "#/$defs/" + known->second;
  }

  bool is_taken(const std::string& name) const {
    return adopted_.contains(name) || (document_.contains("$defs") && document_["$defs"].contains(name));
  }

  std::string file_;
  json document_;
  json adopted_ = json::object();             // definitions by name
  std::map<std::string, std::string> names_;  // names of adopted definitions, by target
};

}  // namespace

std::span<const std::pair<std::string_view, SchemaKind>> schema_names() {
  static constexpr std::array<std::pair<std::string_view, SchemaKind>, 16> kNames = {{
      {"spec", SchemaKind::kSpec},
      {"resolved_spec", SchemaKind::kResolvedSpec},
      {"command_spec", SchemaKind::kCommandSpec},
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
  const std::string file = file_of(name);
  const auto& schemas = embedded_schemas();
  const auto found =
      std::find_if(schemas.begin(), schemas.end(), [&file](const auto& one) { return one.first == file; });
  DROPTEST_CHECK(found != schemas.end(), "no schema " + file);
  json document = comm::parse_json(found->second, "schema " + file);
  if (name != "spec" && name != "command_spec") return document;
  json network = comm::network_schema_document();
  if (name == "command_spec") {
    document["properties"]["rules"] = comm::program_schema_document()["properties"]["rules"];
    network["properties"].erase("time");
    network["properties"]["network"].erase("default");
    document["$defs"] = json::object();
  }
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
      files.emplace_back(file_of(name), std::move(document));
    }
    const auto shared = std::make_shared<const comm::SchemaFiles>(std::move(files));
    std::vector<comm::Schema> schemas;
    for (const auto& [name, of_kind] : schema_names()) schemas.emplace_back(shared, file_of(name));
    return schemas;
  }();
  return kSchemas.at(static_cast<std::size_t>(kind));
}

const comm::Schema& schema_of_spec(const json& document) {
  const bool has_command = document.is_object() && document.contains("command");
  return schema_of(has_command ? SchemaKind::kCommandSpec : SchemaKind::kSpec);
}

std::vector<comm::Violation> violations_of_spec(const json& document) {
  const comm::Schema& schema = schema_of_spec(document);
  if (&schema == &schema_of(SchemaKind::kSpec)) {
    // This one name decides which of the two schemas counts.
    const json members = document.is_object() ? document : json::object();
    for (const auto& [name, value] : members.items()) {
      if (schema.source()["properties"].contains(name) || comm::nearest_name(name, {"command"}).empty()) continue;
      return {{comm::child_pointer("", name), "got an unknown key; did you mean \"command\"?"}};
    }
    return schema.check(document);
  }
  json without_others = document;
  std::vector<comm::Violation> violations;
  const json& of_training = schema_of(SchemaKind::kSpec).source()["properties"];
  for (const auto& [name, value] : document.items()) {
    if (schema.source()["properties"].contains(name) || !of_training.contains(name)) continue;
    violations.push_back({"/" + name, "got it with /command, want it absent: the program trains a model of its own"});
    without_others.erase(name);
  }
  const std::vector<comm::Violation> others = schema.check(without_others);
  violations.insert(violations.end(), others.begin(), others.end());
  return violations;
}

json self_contained_schema(std::string_view name) { return Adoption(name).take(); }

}  // namespace droptest::experiments
