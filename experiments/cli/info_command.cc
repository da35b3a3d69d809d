// SPDX-License-Identifier: Apache-2.0
// droptest info
#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/backend_registry.h"
#include "comm/device/device_info.h"
#include "comm/device/device_libraries.h"
#include "experiments/cli/commands.h"
#include "experiments/records/provenance.h"
#include "models/kernels/cudnn_attention.h"
#include "sim/error.h"

namespace droptest::cli {
namespace {

struct InfoOptions {
  bool json = false;
};

nlohmann::ordered_json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

nlohmann::ordered_json device_json(const comm::DeviceInfo& device) {
  nlohmann::ordered_json record;
  record["index"] = device.index;
  std::string trouble = device.trouble;
  if (trouble.empty()) {
    record["name"] = device.name;
    record["compute_capability"] = std::to_string(device.compute_major) + "." + std::to_string(device.compute_minor);
    record["multiprocessors"] = device.multiprocessors;
    record["pci_bus_id"] = device.pci_bus_id;
    record["total_bytes"] = device.total_bytes;
    try {
      record["free_bytes"] = comm::free_device_bytes(device.index);
    } catch (const DeviceError& error) {
      record["free_bytes"] = nullptr;
      trouble = error.what();
    }
  }
  record["trouble"] = text_or_null(trouble);
  return record;
}

nlohmann::ordered_json cuda_json(const comm::DeviceSurvey& survey) {
  nlohmann::ordered_json record;
  record["built"] = survey.built;
  record["architectures"] = text_or_null(survey.architectures);
  record["runtime"] = text_or_null(survey.runtime_version);
  record["driver"] = text_or_null(survey.driver_version);
  record["libraries"] = nlohmann::ordered_json::object();
  for (const auto& [name, version] : comm::device_library_versions(survey)) record["libraries"][name] = version;
  const models::CudnnLibrary cudnn = models::cudnn_library();
  record["attention_by_cudnn"] = {{"library", text_or_null(cudnn.path)},
                                  {"version", text_or_null(cudnn.version)},
                                  {"absence", text_or_null(cudnn.absence)}};
  record["absence"] = text_or_null(survey.absence);
  record["devices"] = nlohmann::ordered_json::array();
  for (const comm::DeviceInfo& device : survey.devices) record["devices"].push_back(device_json(device));
  return record;
}

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
  info["cuda"] = cuda_json(comm::survey_devices());
  return info;
}

void print_cuda(const nlohmann::ordered_json& cuda) {
  const auto text = [&cuda](const char* key) { return cuda[key].is_null() ? "none" : cuda[key].get<std::string>(); };
  std::cout << "cuda       ";
  if (cuda["built"].get<bool>()) {
    std::cout << "built for " << text("architectures") << "; runtime " << text("runtime") << ", driver "
              << text("driver");
    for (const auto& [name, version] : cuda["libraries"].items()) {
      std::cout << ", " << name << " " << version.get<std::string>();
    }
  } else {
    std::cout << "not built";
  }
  std::cout << "\n";
  if (cuda["built"].get<bool>()) {
    const nlohmann::ordered_json& cudnn = cuda["attention_by_cudnn"];
    const bool is_there = cudnn["absence"].is_null();
    std::cout << "attention  "
              << (is_there ? "cuDNN " + cudnn["version"].get<std::string>() + " (" +
                                 cudnn["library"].get<std::string>() + ")"
                           : "not by cuDNN: " + cudnn["absence"].get<std::string>())
              << "\n";
  }
  const char* heading = "devices    ";
  if (!cuda["absence"].is_null()) std::cout << heading << "none: " << text("absence") << "\n";
  for (const nlohmann::ordered_json& device : cuda["devices"]) {
    const auto gibibytes = [&device](const char* key) { return device[key].get<double>() / 0x1p30; };
    std::cout << heading << device["index"].dump() << ": ";
    if (device.contains("name")) {
      std::cout << device["name"].get<std::string>() << ", compute capability "
                << device["compute_capability"].get<std::string>() << ", " << device["multiprocessors"].dump()
                << " multiprocessors, " << device["pci_bus_id"].get<std::string>() << ", " << std::fixed
                << std::setprecision(1);
      if (!device["free_bytes"].is_null()) std::cout << gibibytes("free_bytes") << " of ";
      std::cout << gibibytes("total_bytes") << " GiB" << (device["free_bytes"].is_null() ? "" : " free");
    }
    if (!device["trouble"].is_null()) std::cout << " (" << device["trouble"].get<std::string>() << ")";
    std::cout << "\n";
    heading = "           ";
  }
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
  std::cout << "\n";
  print_cuda(all["cuda"]);
  return kExitSuccess;
}

}  // namespace

void add_info_command(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("info", "Version, libraries, what was built, and the devices of this machine");
  const auto options = std::make_shared<InfoOptions>();  // shared by CLI11's bindings and the action
  command->add_flag("--json", options->json, "Print JSON");
  command->footer("Examples:\n  droptest info\n  droptest info --json");
  command->callback([options, &chosen] { chosen = [options] { return info(*options); }; });
}

}  // namespace droptest::cli
