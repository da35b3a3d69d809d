// SPDX-License-Identifier: Apache-2.0
// The threads of the host, or the stream of a device, on which a kernel runs.
#pragma once

#include "comm/device/stream.h"
#include "models/team.h"

namespace droptest::models {

/// One of the two members is set. Borrowed.
struct KernelTarget {
  const Team* team = nullptr;      ///< the threads of a rank; null on a device
  comm::Stream* stream = nullptr;  ///< the stream of a device; null on the host
};

}  // namespace droptest::models
