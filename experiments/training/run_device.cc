// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/run_device.h"

#include <algorithm>

#include "comm/allowed_cores.h"
#include "comm/device/device_info.h"
#include "experiments/training/memory_estimate.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// Each run is a process with a CUDA context of its own, and they take turns on the device.
constexpr int kMostJobsOfOneDevice = 8;

}  // namespace

void require_run_device(const RunConfig& config) {
  if (config.device == Device::kCuda) comm::require_device(config.device_index);
}

const RunConfig& most_demanding(std::span<const PlannedRun> runs) {
  const RunConfig* largest = nullptr;
  std::uint64_t most = 0;
  for (const PlannedRun& planned : runs) {
    const RunConfig& config = planned.run.config;
    if (config.device != Device::kCuda) continue;
    if (largest == nullptr) require_run_device(config);
    const std::uint64_t bytes = run_device_bytes(config);
    if (bytes > most) largest = &config;
    most = std::max(most, bytes);
  }
  return largest == nullptr ? runs.front().run.config : *largest;
}

int runs_that_fit(const RunConfig& config) {
  const std::uint64_t wanted = run_device_bytes(config);
  const int ranks = config.backend.name == "local" ? 1 : config.parallel.world_size();  // the devices of a run
  const int devices = std::min(static_cast<int>(comm::survey_devices().devices.size()), config.device_index + ranks);
  std::uint64_t fit = INT32_MAX;
  for (int device = config.device_index; device < devices; ++device) {
    const std::uint64_t free = comm::free_device_bytes(device);
    if (free < wanted) {
      throw ConfigError(
          "device \"cuda\": a run takes about " + comm::gibibytes_text(wanted) + " of a device, and device " +
          std::to_string(device) + " has " + comm::gibibytes_text(free) +
          " free; want a smaller /training/batch_sequences or /model, fewer ranks on the device, or other "
          "programs off it");
    }
    fit = std::min(fit, free / wanted);
  }
  return static_cast<int>(fit);
}

int jobs_at_once(int asked, const RunConfig& config) {
  const int cores = static_cast<int>(comm::allowed_cores().size());
  if (config.device != Device::kCuda) return asked > 0 ? asked : cores;
  const int fit = runs_that_fit(config);
  return asked > 0 ? asked : std::min({cores, kMostJobsOfOneDevice, fit});
}

}  // namespace droptest::experiments
