// SPDX-License-Identifier: Apache-2.0
// droptest list
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/lossy/network.h"
#include "comm/lossy/paths/path_registry.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/known_names.h"
#include "experiments/cli/outcome_text.h"
#include "models/gpt2/gpt2_config.h"
#include "models/kernels/cudnn_attention.h"
#include "models/ops/kernel_registry.h"
#include "sim/loss/loss_registry.h"
#include "sim/recovery/recovery_registry.h"
#include "sim/recovery/retransmission.h"

namespace droptest::cli {
namespace {

/// All names that specs can use, by kind; each entry has `name`, `summary` and further facts of its kind.
nlohmann::ordered_json everything() {
  nlohmann::ordered_json list;
  for (const models::Gpt2Preset& preset : models::gpt2_presets()) {
    const models::Gpt2Config& c = preset.config;
    list["models"].push_back({{"name", preset.name},
                              {"summary", preset.summary},
                              {"layers", c.layers},
                              {"width", c.width},
                              {"heads", c.heads},
                              {"context", c.context},
                              {"vocabulary", c.vocabulary},
                              {"parameters", models::parameter_count(c)}});
  }
  for (const sim::LossProcessEntry& entry : sim::loss_processes()) {
    list["loss_processes"].push_back({{"name", entry.model}, {"summary", entry.summary}});
  }
  for (const comm::PathEntry& entry : comm::paths()) {
    list["paths"].push_back({{"name", entry.name}, {"summary", entry.summary}});
  }
  for (const comm::FillEntry& entry : comm::fills()) {
    nlohmann::ordered_json halves = nlohmann::ordered_json::array();
    if (entry.reduce_half || entry.means) halves.push_back("reduce");
    if (entry.gather_half) halves.push_back("gather");
    list["fills"].push_back({{"name", entry.name}, {"summary", entry.summary}, {"halves", halves}});
  }
  for (const comm::CompressionEntry& entry : comm::compressions()) {
    list["compressions"].push_back({{"name", entry.name}, {"summary", entry.summary}});
  }
  for (const sim::RecoveryEntry& entry : sim::recoveries()) {
    list["recoveries"].push_back({{"name", entry.name},
                                  {"summary", entry.summary},
                                  {"acts_on", entry.place == sim::RecoveryPlace::kLink ? "links" : "messages"}});
  }
  for (const sim::RetransmissionEntry& entry : sim::retransmission_protocols()) {
    list["retransmission_protocols"].push_back({{"name", entry.protocol}, {"summary", entry.summary}});
  }
  for (const models::KernelEntry& entry : models::kernel_entries()) {
    nlohmann::ordered_json types = nlohmann::ordered_json::array();
    for (const comm::ElementType type : entry.types) types.push_back(comm::element_type_name(type));
    const bool is_default = models::kernel_names(entry.operation, entry.device).front() == entry.name;
    list["kernels"].push_back({{"operation", entry.operation},
                               {"name", entry.name},
                               {"device", entry.device == models::KernelDevice::kCuda ? "cuda" : "cpu"},
                               {"default", is_default},
                               {"element_types", types},
                               {"summary", entry.summary}});
    if (entry.name != "cudnn") continue;
    if (const std::string absence = models::cudnn_library().absence; !absence.empty()) {
      list["kernels"].back()["absence"] = absence;
    }
  }
  for (const comm::BackendEntry& entry : comm::backends()) {
    const char* ranks = entry.rank_kind == comm::RankKind::kThreads ? "threads" : "processes";
    list["backends"].push_back(
        {{"name", entry.name}, {"summary", entry.summary}, {"ranks", ranks}, {"built", entry.built}});
  }
  return list;
}

/// Further facts for the line of an entry, after its summary.
std::string remark(const nlohmann::ordered_json& entry) {
  if (entry.contains("parameters")) return " (" + entry.at("parameters").dump() + " parameters)";
  if (entry.contains("built") && !entry.at("built").get<bool>()) return " (not built)";
  if (entry.contains("halves") && entry.at("halves").size() == 1) {
    return " (" + entry.at("halves").at(0).get<std::string>() + " half only)";
  }
  return "";
}

/// The columns of an entry's line.
std::vector<std::string> line_of(const nlohmann::ordered_json& entry) {
  const auto text = [&entry](const char* member) { return entry.at(member).get<std::string>(); };
  if (!entry.contains("operation")) return {"  " + text("name"), text("summary") + remark(entry)};
  std::string types;
  for (const auto& type : entry.at("element_types")) types += (types.empty() ? "" : ", ") + type.get<std::string>();
  return {"  " + text("operation"), text("name"), text("device") + (entry.at("default").get<bool>() ? ", default" : ""),
          types, text("summary") + (entry.contains("absence") ? " (not here: `droptest info` says why)" : "")};
}

struct ListOptions {
  std::string kind;  ///< empty: all
  bool json = false;
};

int list(const ListOptions& options) {
  nlohmann::ordered_json all = everything();
  if (!options.kind.empty()) {
    nlohmann::ordered_json one = nlohmann::ordered_json::object();
    one[options.kind] = all.at(options.kind);
    all = std::move(one);
  }
  if (options.json) {
    std::cout << all.dump(2) << "\n";
    return kExitSuccess;
  }
  for (const auto& [kind, entries] : all.items()) {
    std::string heading = kind;
    std::replace(heading.begin(), heading.end(), '_', ' ');
    std::cout << heading << ":\n";
    std::vector<std::vector<std::string>> rows;
    for (const nlohmann::ordered_json& entry : entries) rows.push_back(line_of(entry));
    std::cout << table_text(rows);
  }
  return kExitSuccess;
}

}  // namespace

void add_list_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand(
      "list", "Models, loss processes, paths, fills, recoveries, protocols, kernels and backends that specs can name");
  const auto options = std::make_shared<ListOptions>();  // shared by CLI11's bindings and the action
  std::vector<std::string> kinds;
  const nlohmann::ordered_json all = everything();
  for (const auto& [kind, entries] : all.items()) kinds.push_back(kind);
  command->add_option("kind", options->kind, "Only names of this kind")->check(one_of(kinds));
  command->add_flag("--json", options->json, "Print JSON");
  command->footer("Examples:\n  droptest list\n  droptest list kernels\n  droptest list --json");
  command->callback([options, &chosen] { chosen = [options] { return list(*options); }; });
}

}  // namespace droptest::cli
