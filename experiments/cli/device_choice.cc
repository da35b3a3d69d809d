// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/device_choice.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/device/device_info.h"
#include "experiments/training/run_device.h"

namespace droptest::cli {
namespace {

std::string device_text(const nlohmann::json& spec, const experiments::RunConfig& run) {
  experiments::require_run_device(run);
  if (run.device == experiments::Device::kCuda) {
    return "cuda, " + comm::describe(comm::survey_devices().devices.at(static_cast<std::size_t>(run.device_index)));
  }
  if (spec.value("device", "") != "auto") return "";
  const std::string absence = comm::survey_devices().absence;
  return "cpu, because " + (absence.empty() ? "backend " + run.backend.name + " carries host memory alone" : absence);
}

}  // namespace

void say_device(const nlohmann::json& spec, const experiments::RunConfig& run) {
  const std::string text = device_text(spec, run);
  if (!text.empty()) std::cerr << "droptest: device: " << text << "\n";
}

}  // namespace droptest::cli
