// SPDX-License-Identifier: Apache-2.0
// A network that fails for some steps and comes back.
#pragma once

#include <memory>

#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

/// {"model": "outage", "windows": [{"from_step": a, "to_step": b}, ...], "loss_rate": L, "otherwise": any process}: in
/// steps a to b - 1 of each window packets are lost independently with probability L (by default 1). The process
/// `otherwise` (by default none) holds in the other steps. A schedule (schedule.h) with a shorter name.
/// Throws: ConfigError for anything else, windows that are empty or not in order.
std::unique_ptr<LossProcess> make_outage(const Parameters& parameters);

}  // namespace droptest::sim
