// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_start.h"

#include <nlohmann/json.hpp>

#include "comm/json/read_file.h"
#include "experiments/files/manifest.h"
#include "sim/error.h"

namespace droptest::experiments {

void resolve_start(nlohmann::json& spec, const std::string& where, std::vector<std::string>& errors) {
  nlohmann::json& start = spec["start"];
  const std::string path = start["manifest"];
  Manifest manifest;
  try {
    manifest = parse_manifest(comm::read_file(path), path);
  } catch (const ConfigError& error) {
    errors.push_back(where + ": /start/manifest: " + error.what());
    return;
  }
  const auto take = [&](const char* member, std::uint64_t of_manifest) {
    if (start.contains(member) && start[member] != of_manifest) {
      errors.push_back(where + ": /start/" + member + ": got " + start[member].dump() + ", but " + path + " has " +
                       std::to_string(of_manifest) + "; leave this member out");
    }
    start[member] = of_manifest;
  };
  take("step", manifest.step);
  take("epoch", static_cast<std::uint64_t>(manifest.membership) + 1);
  const nlohmann::json& steps = spec["training"]["steps"];
  const bool ends_with_data = spec["training"].contains("epochs");
  if (steps <= manifest.step && !ends_with_data) {
    errors.push_back(where + ": /training/steps: got " + steps.dump() + ", want more than the " +
                     std::to_string(manifest.step) + " that the checkpoint of /start has behind it");
  }
}

}  // namespace droptest::experiments
