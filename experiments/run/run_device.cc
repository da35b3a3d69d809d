// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/run_device.h"

#include "comm/device/device_info.h"

namespace droptest::experiments {

void require_run_device(const RunConfig& config) {
  if (config.device == Device::kCuda) comm::require_device(config.device_index);
}

}  // namespace droptest::experiments
