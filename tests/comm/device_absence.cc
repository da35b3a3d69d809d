// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_info.h"
#include "tests/comm/through_device.h"

namespace droptest::comm {

std::string device_absence() { return survey_devices().absence; }

}  // namespace droptest::comm
