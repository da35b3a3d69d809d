// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/device_choice.h"

#include <algorithm>
#include <iostream>

#include "comm/device/device_info.h"
#include "experiments/run/core_shares.h"
#include "experiments/run/run_device.h"

namespace droptest::cli {
namespace {

/// Each run is a process with a CUDA context of its own, and they take turns on the device.
constexpr int kMostJobsOfOneDevice = 8;

}  // namespace

std::string device_text(const nlohmann::json& spec, const experiments::RunConfig& run) {
  experiments::require_run_device(run);
  if (run.device == experiments::Device::kCuda) {
    return "cuda, " + comm::describe(comm::survey_devices().devices.at(static_cast<std::size_t>(run.device_index)));
  }
  if (spec.value("device", "") != "auto") return "";
  const std::string absence = comm::survey_devices().absence;
  return "cpu, because " + (absence.empty() ? "backend " + run.backend.name + " carries host memory alone" : absence);
}

const experiments::RunConfig& most_demanding(std::span<const experiments::PlannedRun> runs) {
  const auto found = std::find_if(runs.begin(), runs.end(), [](const experiments::PlannedRun& planned) {
    return planned.run.config.device == experiments::Device::kCuda;
  });
  return (found == runs.end() ? runs.front() : *found).run.config;
}

void say_device(const nlohmann::json& spec, const experiments::RunConfig& run) {
  const std::string text = device_text(spec, run);
  if (!text.empty()) std::cerr << "droptest: device: " << text << "\n";
}

int default_jobs(const experiments::RunConfig& run) {
  const int cores = static_cast<int>(experiments::allowed_cores().size());
  return run.device == experiments::Device::kCuda ? std::min(cores, kMostJobsOfOneDevice) : cores;
}

}  // namespace droptest::cli
