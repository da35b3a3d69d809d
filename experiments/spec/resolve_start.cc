// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/json/read_file.h"
#include "experiments/files/manifest.h"
#include "experiments/spec/section_resolvers.h"
#include "sim/error.h"

namespace droptest::experiments {

void resolve_start(Resolution& resolution) {
  nlohmann::json& spec = resolution.spec;
  if (!spec.contains("start")) return;
  resolution.take_hash("/start", "manifest");
  if (resolution.has_errors() || resolution.files == nullptr) return;
  nlohmann::json& start = spec["start"];
  const std::string path = start["manifest"];
  Manifest manifest;
  try {
    manifest = parse_manifest(comm::read_file(path), path);
  } catch (const ConfigError& error) {
    resolution.report("/start/manifest", error.what());
    return;
  }
  const auto take = [&](const std::string& member, std::uint64_t of_manifest) {
    if (start.contains(member) && start[member] != of_manifest) {
      resolution.report("/start/" + member, "got " + start[member].dump() + ", but " + path + " has " +
                                                std::to_string(of_manifest) + "; leave this member out");
    }
    start[member] = of_manifest;
  };
  take("step", manifest.step);
  take("epoch", static_cast<std::uint64_t>(manifest.membership) + 1);
  const nlohmann::json& steps = spec["training"]["steps"];
  const bool ends_with_data = spec["training"].contains("epochs");
  if (steps <= manifest.step && !ends_with_data) {
    resolution.report("/training/steps", "got " + steps.dump() + ", want more than the " +
                                             std::to_string(manifest.step) +
                                             " that the checkpoint of /start has behind it");
  }
}

}  // namespace droptest::experiments
