// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of this process, over the `local` backend.
#pragma once

#include <chrono>
#include <functional>

#include "comm/clock.h"
#include "comm/communicator.h"

namespace droptest::comm {

/// Runs `body` once per rank, each on a thread of its own with its communicator, and waits for all. A rank that throws
/// aborts the group; the first failure (the cause, not its echo on the peers) is rethrown here with its type. A rank
/// that never returns is given `timeout` after the first failure and then named in a CommError; its thread is left
/// behind, so the process should end soon after. No rank begins before all threads exist. All threads borrow the clock,
/// which measures both timeouts.
/// Throws: ConfigError that names the rank, and the number of ranks, for which the system gives no thread.
void run_ranks(int world_size, std::chrono::milliseconds timeout, const std::function<void(Communicator&)>& body,
               const Clock& clock = steady_clock());

}  // namespace droptest::comm
