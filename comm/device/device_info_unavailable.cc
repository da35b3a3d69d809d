// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_info.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr const char* kAbsence =
    "this build of droptest has no CUDA code: build it where nvcc is found, with -DDROPTEST_WITH_CUDA=ON";

}  // namespace

DeviceSurvey survey_devices() {
  DeviceSurvey survey;
  survey.absence = kAbsence;
  return survey;
}

std::uint64_t free_device_bytes(int index) { throw DeviceError("device " + std::to_string(index) + ": " + kAbsence); }

}  // namespace droptest::comm
