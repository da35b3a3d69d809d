// SPDX-License-Identifier: Apache-2.0
// The processor of a kernel.
#pragma once

#include "comm/device/stream.h"
#include "models/team.h"

namespace droptest::models {

/// Borrowed: the threads of a rank for kernels of the host, or the stream on which kernels of a device are put.
struct KernelTarget {
  const Team* team = nullptr;      ///< null for kernels of a device
  comm::Stream* stream = nullptr;  ///< null for kernels of the host
};

}  // namespace droptest::models
