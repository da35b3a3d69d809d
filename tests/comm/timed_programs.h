// SPDX-License-Identifier: Apache-2.0
// Random programs on a loss layer with fates that depend on time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "tests/comm/started_programs.h"

namespace droptest::comm {

constexpr auto kTimedClass = sim::TrafficClass::kDpGradient;

/// The results of a program, which no backend, order of threads or order of waits can change.
struct TimedOutcome {
  std::vector<std::byte> bytes;  ///< bytes of all outputs of this rank
  std::uint64_t digest = 0;      ///< digest of all fates
  std::uint64_t packets = 0;
  std::uint64_t lost = 0;
  std::uint64_t residual = 0;
  std::uint64_t untouched = 0;  ///< number of calls without any loss
  std::uint64_t untouched_steps = 0;
  double seconds = 0;  ///< virtual time in seconds
  friend bool operator==(const TimedOutcome&, const TimedOutcome&) = default;
};

/// Runs the programs first to end - 1. Steps and protected scopes begin in the middle of them. Ranks: all.
TimedOutcome run_timed_programs(Communicator& inner, const LossyOptions& options, Calls calls, std::uint64_t first,
                                std::uint64_t end);

/// Networks on `path` with a clock: loss bursts that also hit repetitions, or loss episodes of the links.
LossyOptions bursts_with_repetitions(std::string_view path);
LossyOptions episodes(std::string_view path);

}  // namespace droptest::comm
