// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor/device_checks.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "comm/backend_registry.h"

namespace droptest::experiments {
namespace {

/// The number at the beginning of the text, which then goes on behind it; nothing if it begins with no number.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::string count_of_devices(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " device" : " devices");
}

std::string seen_devices(const comm::DeviceSurvey& survey) {
  if (survey.devices.empty()) return survey.absence;
  std::string text = count_of_devices(survey.devices.size());
  const char* separator = ": ";
  for (const comm::DeviceInfo& device : survey.devices) {
    text += separator + describe(device);
    separator = "; ";
  }
  return text;
}

/// A device that a run is about to use is one of the first `wanted`.
std::string troubles_of(int wanted, const comm::DeviceSurvey& survey) {
  std::string text;
  for (const comm::DeviceInfo& device : survey.devices) {
    if (device.index >= wanted) break;
    std::string trouble = device.trouble;
    if (trouble.empty() && !runs_on(survey.architectures, device.compute_major, device.compute_minor)) {
      trouble = "this build has code for " + survey.architectures +
                " only: build it with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(device.compute_major) +
                std::to_string(device.compute_minor);
    }
    if (trouble.empty()) continue;
    text += (text.empty() ? "device " : "; device ") + std::to_string(device.index) + ": " + trouble;
  }
  return text;
}

Finding devices_finding(int wanted, const comm::DeviceSurvey& survey) {
  const std::string seen = seen_devices(survey);
  if (wanted == 0) return {"devices", "", Health::kOk, "the spec needs no device; " + seen, ""};
  if (survey.devices.empty()) {
    return {"devices", "", Health::kFailed, count_of_devices(static_cast<std::size_t>(wanted)) + " wanted; " + seen,
            "mend that, or compute on the CPU (\"device\": \"cpu\")"};
  }
  if (survey.devices.size() < static_cast<std::size_t>(wanted)) {
    return {"devices", "", Health::kFailed, std::to_string(wanted) + " wanted, one for each rank here; " + seen,
            "start fewer ranks on this machine, look at CUDA_VISIBLE_DEVICES, or ask for more devices"};
  }
  const std::string troubles = troubles_of(wanted, survey);
  if (!troubles.empty()) return {"devices", "", Health::kFailed, troubles, "mend that, or choose other devices"};
  return {"devices", "", Health::kOk, std::to_string(wanted) + " wanted; " + seen, ""};
}

Finding driver_finding(int wanted, const comm::DeviceSurvey& survey) {
  // If no devices are wanted, any driver is fine.
  const Health bad = wanted > 0 ? Health::kFailed : Health::kOk;
  if (!survey.built) {
    return {"driver", "", bad, "this build has no CUDA code", wanted > 0 ? "build with -DDROPTEST_WITH_CUDA=ON" : ""};
  }
  const std::string runtime = "CUDA runtime " + survey.runtime_version;
  if (survey.driver_version.empty()) {
    return {"driver", "", bad, runtime + ", no driver",
            wanted > 0 ? "install a driver that serves CUDA " + survey.runtime_version : ""};
  }
  const std::string seen = runtime + ", driver serves CUDA up to " + survey.driver_version;
  if (!is_older(survey.driver_version, survey.runtime_version)) return {"driver", "", Health::kOk, seen, ""};
  // An older driver serves a newer runtime within one major version, except for its new features.
  const bool same_major = survey.driver_version.substr(0, survey.driver_version.find('.')) ==
                          survey.runtime_version.substr(0, survey.runtime_version.find('.'));
  return {"driver", "", same_major && wanted > 0 ? Health::kWarning : bad,
          seen + ": the driver is older than the runtime",
          wanted > 0 ? "update the driver, or build with CUDA " + survey.driver_version : ""};
}

Finding libraries_finding(const std::map<std::string, std::string>& libraries) {
  std::string seen;
  for (const auto& [name, version] : libraries) seen += (seen.empty() ? "" : ", ") + name + " " + version;
  std::string missing;
  for (const char* name : {"NCCL", "cuBLASLt", "cuDNN"}) {
    if (!libraries.contains(name)) missing += (missing.empty() ? "" : ", ") + std::string(name);
  }
  if (missing.empty()) return {"device libraries", "", Health::kOk, seen, ""};
  return {"device libraries", "", Health::kWarning, (seen.empty() ? "" : seen + "; ") + "not found: " + missing,
          "install them where the dynamic linker looks (ldconfig -p), or set LD_LIBRARY_PATH"};
}

}  // namespace

int wanted_devices(const ResolvedRun& run, const std::optional<comm::LaunchEnvironment>& launch) {
  const comm::BackendEntry& backend = comm::backend_entry(run.config.backend.name);
  const bool on_devices = backend.name == "nccl" || run.spec.value("device", "cpu") == "cuda";
  if (!on_devices) return 0;
  if (backend.rank_kind == comm::RankKind::kThreads) return 1;
  if (!launch) return run.config.parallel.world_size();
  return launch->local_rank < 0 ? 1 : launch->local_rank + 1;  // local rank r uses device r
}

bool runs_on(std::string_view architectures, int compute_major, int compute_minor) {
  const int capability = 10 * compute_major + compute_minor;
  while (!architectures.empty()) {
    std::string_view entry = architectures.substr(0, architectures.find(','));
    architectures.remove_prefix(std::min(entry.size() + 1, architectures.size()));
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    const std::optional<int> number = take_number(entry);
    if (!number) return true;
    const bool same_major = capability / 10 == *number / 10;
    if (entry.starts_with('a')) {  // the instructions that "90a" adds exist only on that capability
      if (capability == *number) return true;
    } else if (entry.starts_with('f')) {  // the instructions of "100f" exist on its family
      if (same_major && capability >= *number) return true;
    } else {
      const bool machine_code = !entry.ends_with("-virtual");
      const bool ptx = !entry.ends_with("-real");
      if (capability >= *number && (ptx || (machine_code && same_major))) return true;
    }
  }
  return false;
}

bool is_older(std::string_view version, std::string_view other) {
  for (;;) {
    const std::optional<int> ours = take_number(version);
    const std::optional<int> theirs = take_number(other);
    if (!ours || !theirs) return theirs.has_value() && *theirs > 0;
    if (*ours != *theirs) return *ours < *theirs;
    if (version.starts_with('.')) version.remove_prefix(1);
    if (other.starts_with('.')) other.remove_prefix(1);
  }
}

Finding check_cudnn(const models::CudnnLibrary& library) {
  constexpr const char* kName = "attention by cuDNN";
  if (library.absence.empty()) return {kName, "", Health::kOk, "cuDNN " + library.version + ", " + library.path, ""};
  return {kName, "", Health::kWarning, library.absence + "; runs take /kernels/attention \"flash\" in its place",
          "install cuDNN and its frontend's headers (docs/kernels.md), or name \"flash\" in the spec"};
}

std::vector<Finding> check_devices(int wanted, const comm::DeviceSurvey& survey,
                                   const std::map<std::string, std::string>& libraries) {
  std::vector<Finding> findings = {devices_finding(wanted, survey), driver_finding(wanted, survey)};
  if (wanted > 0 && survey.built) findings.push_back(libraries_finding(libraries));
  return findings;
}

}  // namespace droptest::experiments
