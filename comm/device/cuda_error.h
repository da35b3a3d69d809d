// SPDX-License-Identifier: Apache-2.0
// Results of CUDA calls as exceptions, for sources that include CUDA's headers anyway.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace droptest::comm {

/// Throws: DeviceError `<operation>: <CUDA's name>: <CUDA's words>` unless `status` is a success.
void check_cuda(cudaError_t status, std::string_view operation);

}  // namespace droptest::comm
