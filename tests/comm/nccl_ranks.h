// SPDX-License-Identifier: Apache-2.0
// Ranks over the NCCL backend as threads of a test, on the double's devices.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/stream.h"

namespace droptest::comm {

/// The program of a rank on its device and on the stream that it is given.
using Body = std::function<void(Communicator&, Stream&)>;

struct Ranks {
  int world_size = 2;
  std::chrono::milliseconds timeout{30000};
  int devices = 0;  ///< 0: as many devices as ranks
};

/// Runs the ranks as threads. Returns "ok" or the error of each rank.
std::vector<std::string> run_nccl_ranks(const Ranks& ranks, const Body& body);

}  // namespace droptest::comm
