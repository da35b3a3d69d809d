// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/section_resolvers.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/schema/schema_kinds.h"
#include "sim/error.h"

namespace droptest::experiments {

using nlohmann::json;

void Resolution::report(const std::string& pointer, const std::string& message) const {
  errors.push_back(where + ": " + pointer + ": " + message);
}

void Resolution::take_hash(const std::string& pointer, const char* path, const char* hash) const {
  json& object = spec.at(json::json_pointer(pointer));
  const auto report_of = [&](const char* member, const std::string& message) {
    report(pointer + "/" + member, message);
  };
  if (!object.contains(path)) {
    if (object.contains(hash)) report_of(hash, "got a hash without a file, want no hash");
    return;
  }
  if (files == nullptr) return;
  const std::string file = object[path].get<std::string>();
  try {
    const std::string& found = files->of(file);
    if (object.contains(hash) && object[hash] != found) {
      report_of(hash, "got " + object[hash].dump() + ", but " + file + " has \"" + found +
                          "\"; want the file that was meant, or no hash");
    }
    object[hash] = found;
  } catch (const ConfigError& error) {
    report_of(path, std::string(error.what()) + "; paths are relative to " + std::filesystem::current_path().string());
  }
}

void Resolution::fill_defaults(const std::string& pointer) const {
  json& member = spec.at(json::json_pointer(pointer));
  member = schema_of(SchemaKind::kSpec).with_defaults(member, pointer);
}

void refuse_several_runs(Resolution& resolution) {
  json& spec = resolution.spec;
  if (spec.contains("sweep")) resolution.report("/sweep", "got a sweep, want a spec of one run");
  for (const json& repeats : spec.value("repeat", json::object())) {
    if (repeats != 1) resolution.report("/repeat", "got repeats, want one run");
  }
  if (spec.contains("search")) resolution.report("/search", "got a search, want a spec of one run");
  if (spec.contains("extends"))
    resolution.report("/extends", "got the name of a file, want a file that is merged already");
  for (const char* several : {"sweep", "repeat", "search"}) spec.erase(several);
}

void resolve_seeds(Resolution& resolution) {
  json& spec = resolution.spec;
  json& seeds = spec["seeds"];
  if (resolution.given.contains("seed") && seeds.size() == 3) {
    resolution.report("/seed",
                      "got " + comm::quote_json(resolution.given["seed"]) +
                          ", which changes nothing, since /seeds has weights, data and network; want one of the two");
  }
  resolution.config.seeds.visit_members([&](const char* name, std::uint64_t& seed) {
    if (!seeds.contains(name)) seeds[name] = spec["seed"];
    seed = seeds[name].get<std::uint64_t>();
  });
  spec.erase("seed");
}

}  // namespace droptest::experiments
