// SPDX-License-Identifier: Apache-2.0
// droptest info
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/backend_registry.h"
#include "experiments/cli/commands.h"
#include "experiments/records/provenance.h"

namespace droptest::cli {
namespace {

struct InfoOptions {
  bool json = false;
};

nlohmann::ordered_json build_info() {
  const experiments::Provenance build = experiments::build_provenance();
  nlohmann::ordered_json info;
  info["version"] = build.version;
  info["commit"] = build.commit;
  info["host"] = build.host;
  info["cores"] = std::thread::hardware_concurrency();
  info["compiler"] = build.compiler;
  info["libraries"] = nlohmann::ordered_json::object();
  for (const auto& [name, version] : build.libraries) info["libraries"][name] = version;
  info["backends"] = nlohmann::ordered_json::object();
  for (const comm::BackendEntry& entry : comm::backends()) info["backends"][std::string(entry.name)] = entry.built;
#ifdef DROPTEST_CUDA_BUILT
  info["cuda"] = true;
#else
  info["cuda"] = false;
#endif
  return info;
}

int info(const InfoOptions& options) {
  const nlohmann::ordered_json all = build_info();
  if (options.json) {
    std::cout << all.dump(2) << "\n";
    return kExitSuccess;
  }
  std::cout << "droptest " << all["version"].get<std::string>() << " (" << all["commit"].get<std::string>() << ")\n"
            << "compiler   " << all["compiler"].get<std::string>() << "\n"
            << "host       " << all["host"].get<std::string>() << ", " << all["cores"].dump() << " cores\n";
  std::cout << "libraries ";
  const char* separator = " ";
  for (const auto& [name, version] : all["libraries"].items()) {
    std::cout << separator << name << " " << version.get<std::string>();
    separator = ", ";
  }
  std::cout << "\nbackends  ";
  separator = " ";
  for (const auto& [name, built] : all["backends"].items()) {
    std::cout << separator << name << (built.get<bool>() ? "" : " (not built)");
    separator = ", ";
  }
  std::cout << "\ncuda       " << (all["cuda"].get<bool>() ? "built" : "not built") << "\n";
  return kExitSuccess;
}

}  // namespace

void add_info_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("info", "Version, libraries and what was built");
  const auto options = std::make_shared<InfoOptions>();  // shared by CLI11's bindings and the action
  command->add_flag("--json", options->json, "Print JSON");
  command->footer("Examples:\n  droptest info\n  droptest info --json");
  command->callback([options, &chosen] { chosen = [options] { return info(*options); }; });
}

}  // namespace droptest::cli
