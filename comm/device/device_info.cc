// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_info.h"

#include <array>
#include <cstdio>

#include "sim/error.h"

namespace droptest::comm {

std::string gibibytes_text(std::uint64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f GiB", static_cast<double>(bytes) / 0x1p30);
  return text.data();
}

std::string describe(const DeviceInfo& device) {
  const std::string start = std::to_string(device.index) + ": ";
  if (!device.trouble.empty()) return start + device.trouble;
  return start + device.name + " (compute capability " + std::to_string(device.compute_major) + "." +
         std::to_string(device.compute_minor) + ", " + gibibytes_text(device.total_bytes) + ", " +
         std::to_string(device.multiprocessors) + " multiprocessors, " + device.pci_bus_id + ")";
}

void require_device(const DeviceSurvey& survey, int index) {
  if (!survey.absence.empty()) {
    throw DeviceError("device \"cuda\": " + survey.absence +
                      "; `droptest info` shows the devices; use \"device\": \"cpu\" where none answers");
  }
  const auto found = static_cast<std::size_t>(index);
  if (index < 0 || found >= survey.devices.size()) {
    std::string there;
    for (const DeviceInfo& device : survey.devices) there += (there.empty() ? "" : ", ") + describe(device);
    throw ConfigError("device \"cuda\": wanted device " + std::to_string(index) + ", this machine has " +
                      std::to_string(survey.devices.size()) + ": " + there +
                      "; start at most one process for each device, and look at CUDA_VISIBLE_DEVICES");
  }
  if (const std::string& trouble = survey.devices[found].trouble; !trouble.empty()) {
    throw DeviceError("device \"cuda\": device " + std::to_string(index) + ": " + trouble);
  }
}

void require_device(int index) { require_device(survey_devices(), index); }

}  // namespace droptest::comm
