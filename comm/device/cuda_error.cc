// SPDX-License-Identifier: Apache-2.0
#include "comm/device/cuda_error.h"

#include <string>

#include "sim/error.h"

namespace droptest::comm {

void check_cuda(cudaError_t status, std::string_view operation) {
  if (status == cudaSuccess) return;
  throw DeviceError(std::string(operation) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

}  // namespace droptest::comm
