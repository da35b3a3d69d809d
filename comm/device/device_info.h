// SPDX-License-Identifier: Apache-2.0
// The CUDA devices of this machine, and the support for them in this build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace droptest::comm {

/// One device as the CUDA runtime numbers it: CUDA_VISIBLE_DEVICES may hide and reorder the machine's devices.
struct DeviceInfo {
  int index = 0;
  std::string name;       ///< name: "NVIDIA H100 80GB HBM3"
  int compute_major = 0;  ///< first number of the compute capability, 9 of 9.0
  int compute_minor = 0;
  std::uint64_t total_bytes = 0;
  int multiprocessors = 0;
  std::string pci_bus_id;  ///< "0000:3b:00.0"
  std::string trouble;     ///< the reason why its properties could not be read; empty if they could
};

struct DeviceSurvey {
  bool built = false;           ///< whether CUDA code is in this build
  std::string architectures;    ///< architectures of the compiled code, as CMake names them: "80-real, 90"
  std::string runtime_version;  ///< version of the CUDA runtime in this build: "13.0"
  std::string driver_version;   ///< the newest CUDA version that the driver serves; empty: there is no driver
  std::string absence;          ///< the reason why no device can be used, and a remedy; empty if one can
  std::vector<DeviceInfo> devices;
};

/// Looks at the devices without opening a context, so that no device's memory is used. Never throws: the survey has the
/// errors.
DeviceSurvey survey_devices();

/// The memory of a device that no process uses now. Opens a context on it, which stays; the calling thread keeps the
/// device that it uses. Throws: DeviceError naming the device and the cause.
std::uint64_t free_device_bytes(int index);

/// Checks that the survey has a device of this index that can be used.
/// Throws: DeviceError with the cause if no device can be used, or not this one; ConfigError that lists the devices if
/// `index` is none of them.
void require_device(const DeviceSurvey& survey, int index);

/// Checks a device of this machine.
void require_device(int index);

/// A device in words: "0: NVIDIA H100 80GB HBM3 (compute capability 9.0, 79.1 GiB, 132 multiprocessors, 0000:3b:00.0)".
std::string describe(const DeviceInfo& device);

/// The memory of a device, or a part of it, in words: "79.1 GiB".
std::string gibibytes_text(std::uint64_t bytes);

}  // namespace droptest::comm
