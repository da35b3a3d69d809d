// SPDX-License-Identifier: Apache-2.0
// Further attempts of a run whose processes die.
#pragma once

#include <chrono>
#include <optional>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The pause before the next attempt after so many failed ones, which doubles each time; absent: there is none.
std::optional<std::chrono::milliseconds> pause_before_restart(const std::optional<RestartConfig>& restart,
                                                              int failed_attempts);

}  // namespace droptest::experiments
