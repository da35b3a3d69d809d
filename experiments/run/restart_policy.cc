// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/restart_policy.h"

#include <algorithm>
#include <cmath>

namespace droptest::experiments {

std::optional<std::chrono::milliseconds> pause_before_restart(const std::optional<RestartConfig>& restart,
                                                              int failed_attempts) {
  if (!restart || failed_attempts > restart->attempts) return std::nullopt;
  constexpr double kLongestSeconds = 86400;
  const double seconds = std::min(kLongestSeconds, std::ldexp(restart->backoff_seconds, failed_attempts - 1));
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace droptest::experiments
