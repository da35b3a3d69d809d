// SPDX-License-Identifier: Apache-2.0
#include "sim/schedules/hop_schedule.h"

#include <string>

#include "sim/error.h"

namespace droptest::sim {

HopSchedule::HopSchedule(const ScheduleRequest& request, int parts) : request_(request), parts_(parts) {
  DROPTEST_CHECK(request.ranks >= 1, "a schedule of " + std::to_string(request.ranks) + " ranks");
  DROPTEST_CHECK(request.root >= 0 && request.root < request.ranks,
                 "root " + std::to_string(request.root) + " of " + std::to_string(request.ranks) + " ranks");
}

int usual_parts(const ScheduleRequest& request, int all_reduce_parts) {
  switch (request.collective) {
    case Collective::kAllReduce:
      return all_reduce_parts;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return request.ranks;
    case Collective::kBroadcast:
      return 1;
  }
  DROPTEST_CHECK(false, "unknown collective");
}

}  // namespace droptest::sim
