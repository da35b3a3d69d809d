// SPDX-License-Identifier: Apache-2.0
// The expected survival and error of an all-reduce under loss, computed exactly over the hops of its schedule.
#pragma once

#include <functional>
#include <optional>

#include "comm/lab/collective_theory.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::comm {

/// Loss rate of a link between two ranks of the group.
using LinkRate = std::function<double(sim::Half half, int source, int destination)>;

/// The expectations of an all-reduce with independent loss on its hops, and with parts of equal size. Fills are those
/// of the case; its loss rates, path and ranks are ignored. `alike`: all links of a half have one rate, so one
/// computation serves all parts that travel alike.
enum class Links : std::uint8_t { kAlike, kDiffer };
struct ScheduleExpectation {
  Survival survival;
  std::optional<double> nmse;  ///< absent for `stale`, and if counts would take too long (see the source)
};
/// Source: linear recursions over the hops, derived in schedule_theory.cc; for the ring, halving and doubling and the
/// tree they give the closed forms of docs/paths.md.
ScheduleExpectation expected_all_reduce(const sim::HopSchedule& schedule, const LossyAllReduce& fills,
                                        const LinkRate& rate, Links links);

}  // namespace droptest::comm
