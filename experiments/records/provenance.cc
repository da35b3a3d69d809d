// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/provenance.h"

#include <oneapi/dnnl/dnnl_version.h>
#include <openssl/opensslv.h>

#include <Eigen/Core>
#include <array>
#include <boost/version.hpp>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>

#include "comm/device/device_info.h"
#include "comm/device/device_libraries.h"
#include "comm/host_name.h"
#include "experiments/records/build_facts.h"
#include "experiments/spec/kernels_in_use.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

std::string dotted(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

}  // namespace

Provenance build_provenance() {
  const BuildFacts facts = build_facts();
  Provenance provenance;
  provenance.version = facts.version;
  provenance.commit = facts.commit;
  provenance.host = comm::host_name();
  provenance.compiler = facts.compiler;
  provenance.libraries = {
      {"oneDNN", dotted(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH)},
      {"Eigen", dotted(EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION)},
      {"Boost", dotted(BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000, BOOST_VERSION % 100)},
      {"nlohmann_json", dotted(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"OpenSSL", OPENSSL_VERSION_STR},
      {"Gloo", facts.gloo_version},
  };
  return provenance;
}

std::string nvidia_driver_version(std::string_view text) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..."; the open module's name ends in "for x86_64".
  static const std::regex version("Kernel Module.*? ([0-9]+[.][0-9]+([.][0-9]+)*)");
  std::match_results<std::string_view::const_iterator> found;
  return std::regex_search(text.begin(), text.end(), found, version) ? found[1].str() : "";
}

Provenance run_provenance(const RunConfig& config) {
  Provenance provenance = build_provenance();
  if (config.device != Device::kCuda) return provenance;
  const comm::DeviceSurvey survey = comm::survey_devices();
  if (!survey.runtime_version.empty()) provenance.libraries["CUDA"] = survey.runtime_version;
  const auto add = [&](const char* name) {
    if (const auto version = comm::device_library_version(survey, name)) provenance.libraries[name] = *version;
  };
  add("cuBLASLt");
  if (uses_cudnn(config)) add("cuDNN");
  if (config.backend.name == "nccl") add("NCCL");
  const auto index = static_cast<std::size_t>(config.device_index);
  if (index >= survey.devices.size()) return provenance;
  const comm::DeviceInfo& info = survey.devices[index];
  std::ifstream file("/proc/driver/nvidia/version");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  provenance.device = {info.name, std::to_string(info.compute_major) + "." + std::to_string(info.compute_minor),
                       info.total_bytes, nvidia_driver_version(text), survey.driver_version};
  return provenance;
}

std::string utc_text(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  DROPTEST_CHECK(::gmtime_r(&seconds, &parts) != nullptr, "time " + std::to_string(seconds));
  std::array<char, 32> text{};
  DROPTEST_CHECK(std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts) > 0, "strftime");
  return text.data();
}

nlohmann::json to_json(const Provenance& provenance) {
  nlohmann::json record = {{"version", provenance.version},    {"commit", provenance.commit},
                           {"host", provenance.host},          {"compiler", provenance.compiler},
                           {"started", provenance.started},    {"finished", provenance.finished},
                           {"libraries", provenance.libraries}};
  if (const auto& device = provenance.device) {
    record["device"] = {{"name", device->name},
                        {"compute_capability", device->compute_capability},
                        {"memory_bytes", device->memory_bytes},
                        {"driver_cuda", device->driver_cuda}};
    if (!device->driver.empty()) record["device"]["driver"] = device->driver;
  }
  return record;
}

}  // namespace droptest::experiments
