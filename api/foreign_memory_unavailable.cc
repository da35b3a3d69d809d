// SPDX-License-Identifier: Apache-2.0
// Device memory in a build without CUDA code.
#include "api/foreign_memory.h"
#include "sim/error.h"

namespace droptest::api {

void ForeignMemory::check_device(const droptest_memory& /*memory*/) {
  throw DeviceError(
      "memory: got memory of a CUDA device, but this libdroptest.so has no CUDA code; build it where nvcc is found "
      "(DROPTEST_WITH_CUDA=ON asks for it), or give host memory");
}

void ForeignMemory::change_on_device(const droptest_memory& memory, comm::Tensor /*elements*/,
                                     const std::function<void(comm::Tensor)>& /*change*/) {
  check_device(memory);
}

}  // namespace droptest::api
