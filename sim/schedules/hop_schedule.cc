// SPDX-License-Identifier: Apache-2.0
#include "sim/schedules/hop_schedule.h"

#include <algorithm>
#include <string>

#include "sim/error.h"

namespace droptest::sim {

HopSchedule::HopSchedule(const ScheduleRequest& request, int parts) : request_(request), parts_(parts) {
  DROPTEST_CHECK(request.ranks >= 1, "a schedule of " + std::to_string(request.ranks) + " ranks");
  DROPTEST_CHECK(request.root >= 0 && request.root < request.ranks,
                 "root " + std::to_string(request.root) + " of " + std::to_string(request.ranks) + " ranks");
}

void HopSchedule::for_each_hop(int round, const std::function<void(const Hop&)>& visit) const {
  std::vector<Hop> hops;
  std::vector<std::size_t> begins = {0};
  std::size_t most = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    sends(round, rank, hops);
    most = std::max(most, hops.size() - begins.back());
    begins.push_back(hops.size());
  }
  for (std::size_t turn = 0; turn < most; ++turn) {
    for (std::size_t rank = 0; rank + 1 < begins.size(); ++rank) {
      if (begins[rank] + turn < begins[rank + 1]) visit(hops[begins[rank] + turn]);
    }
  }
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
