// SPDX-License-Identifier: Apache-2.0
// The report of `droptest fates` as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "sim/loss/fate_report.h"
#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"

namespace droptest::experiments {

/// Members in the order in which people read them; numbers that are not finite are null.
nlohmann::ordered_json fate_report_json(const sim::LossProcess& process, std::uint64_t seed, const sim::Link& link,
                                        const sim::FateReport& report);

}  // namespace droptest::experiments
