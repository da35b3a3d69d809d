// SPDX-License-Identifier: Apache-2.0
// Random programs on a loss layer whose fates depend on time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "tests/comm/started_programs.h"

namespace droptest::comm {

constexpr auto kTimedClass = sim::TrafficClass::kDpGradient;

/// What no backend, order of threads or order of waits can change.
struct TimedOutcome {
  std::vector<std::byte> bytes;  ///< of all outputs of this rank
  std::uint64_t digest = 0;      ///< of all fates
  std::uint64_t packets = 0;
  std::uint64_t lost = 0;
  std::uint64_t residual = 0;
  std::uint64_t untouched = 0;  ///< calls
  std::uint64_t untouched_steps = 0;
  double seconds = 0;  ///< of virtual time
  friend bool operator==(const TimedOutcome&, const TimedOutcome&) = default;
};

/// Runs programs first to end - 1, with steps that begin and scopes that protect in the middle of them. Ranks: all.
TimedOutcome run_timed_programs(Communicator& inner, const LossyOptions& options, Calls calls, std::uint64_t first,
                                std::uint64_t end);

/// Bursts that repetitions meet, or episodes of the links, on `path`, with a clock.
LossyOptions bursts_with_repetitions(std::string_view path);
LossyOptions episodes(std::string_view path);

}  // namespace droptest::comm
