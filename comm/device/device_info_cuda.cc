// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>

#include "comm/device/device_info.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

/// 13000 becomes "13.0".
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// An error in words: "cudaGetDeviceCount: no CUDA-capable device is detected (cudaErrorNoDevice)". Forgets the error,
/// so that later calls do not report it.
std::string failure_text(const std::string& call, cudaError_t error) {
  cudaGetLastError();
  return call + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
}

std::string visible_devices_text() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : "; CUDA_VISIBLE_DEVICES is \"" + std::string(visible) + "\"";
}

/// The reason why there is no device. If there is no driver, the runtime's text ("driver too old") would mislead.
std::string absence_text(cudaError_t error, int driver, int runtime) {
  if (driver == 0) {
    return "there is no NVIDIA driver on this machine (" + failure_text("cudaGetDeviceCount", error) +
           "): install one that serves CUDA " + version_text(runtime) + ", or use a machine that has one";
  }
  if (error == cudaErrorInsufficientDriver) {
    return "the driver serves CUDA up to " + version_text(driver) + ", this build needs " + version_text(runtime) +
           " (" + failure_text("cudaGetDeviceCount", error) + "): update the driver, or build with an older CUDA";
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    return "the driver shows no device" + visible_devices_text() +
           ": look at nvidia-smi, and ask for devices where "
           "they are given out (srun --gres=gpu:1)";
  }
  return failure_text("cudaGetDeviceCount", error) + visible_devices_text() + ": look at nvidia-smi";
}

DeviceInfo device_info(int index) {
  DeviceInfo info;
  info.index = index;
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    info.trouble = failure_text("cudaGetDeviceProperties", error);
    return info;
  }
  info.name = properties.name;
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.total_bytes = properties.totalGlobalMem;
  info.multiprocessors = properties.multiProcessorCount;
  std::array<char, 64> bus_id{};
  if (const cudaError_t error = cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), index); error != cudaSuccess) {
    info.trouble = failure_text("cudaDeviceGetPCIBusId", error);
    return info;
  }
  info.pci_bus_id = bus_id.data();
  return info;
}

/// Gives the calling thread its device back.
class DeviceScope {
 public:
  DeviceScope() { known_ = cudaGetDevice(&before_) == cudaSuccess; }
  ~DeviceScope() {
    if (known_) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool known_ = false;
};

}  // namespace

DeviceSurvey survey_devices() {
  DeviceSurvey survey;
  survey.built = true;
  survey.architectures = DROPTEST_CUDA_ARCHITECTURES;
  // These calls write no results if they fail.
  int runtime = 0;
  int driver = 0;
  int count = 0;
  if (const cudaError_t error = cudaRuntimeGetVersion(&runtime); error != cudaSuccess) {
    survey.absence = failure_text("cudaRuntimeGetVersion", error);
    return survey;
  }
  survey.runtime_version = version_text(runtime);
  if (const cudaError_t error = cudaDriverGetVersion(&driver); error != cudaSuccess) {
    survey.absence = failure_text("cudaDriverGetVersion", error) + ": look at nvidia-smi";
    return survey;
  }
  if (driver != 0) survey.driver_version = version_text(driver);
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    survey.absence = absence_text(error, driver, runtime);
    return survey;
  }
  for (int index = 0; index < count; ++index) survey.devices.push_back(device_info(index));
  return survey;
}

std::uint64_t free_device_bytes(int index) {
  const std::string where = "device " + std::to_string(index) + ": ";
  const DeviceScope scope;
  if (const cudaError_t error = cudaSetDevice(index); error != cudaSuccess) {
    throw DeviceError(where + failure_text("cudaSetDevice", error));
  }
  std::size_t free = 0;
  std::size_t total = 0;
  if (const cudaError_t error = cudaMemGetInfo(&free, &total); error != cudaSuccess) {
    throw DeviceError(where + failure_text("cudaMemGetInfo", error));
  }
  return free;
}

}  // namespace droptest::comm
