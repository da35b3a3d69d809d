// SPDX-License-Identifier: Apache-2.0
// The program of a rank in a separate process: arguments, faults, and the report to rank_processes.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/communicator.h"
#include "tests/comm/turn_clock.h"

namespace droptest::comm {

/// What a rank does in a test.
struct RankPart {
  std::string scenario;
  int culprit = -1;
};

/// The body of a rank; returns the digest of its results.
using RankBody = std::function<std::uint64_t(const ProcessGroupOptions&, TurnClock&, const RankPart&)>;

/// Arguments:
///   RANK WORLD_SIZE TIMEOUT_MS file|redis|tcp DIRECTORY|PORT LAUNCH_ID SCENARIO CULPRIT OUTPUT TURNS
/// Timeouts use the clock of the file TURNS. Writes "ok DIGEST" or "error TYPE: MESSAGE" to the file OUTPUT. Returns
/// the status of the process.
int rank_main(const std::vector<std::string>& arguments, const RankBody& body);

/// Runs the body on the rank's communicator of backend `gloo`. Aborts the communicator if the body throws.
std::uint64_t with_communicator(const ProcessGroupOptions& options,
                                const std::function<std::uint64_t(Communicator&)>& body);

/// Makes the fault of a culprit: "kill", "exit", "throw", "stop" or "sleep". Returns if `fault` is another word.
void misbehave(TurnClock& clock, std::string_view how);

}  // namespace droptest::comm
