// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/flows/send_times.h"

#include <algorithm>

namespace droptest::comm {

void SendTimes::add_shared(sim::Link link, const SendTime& time) {
  link.destination = sim::Link::kEveryDestination;
  std::deque<SendTime>& of_all = times_[link];
  if (of_all.empty()) return of_all.push_back(time);
  SendTime& first = of_all.front();
  first.departs_seconds = std::min(first.departs_seconds, time.departs_seconds);
  first.packet_seconds = std::max(first.packet_seconds, time.packet_seconds);
  if (time.in_time) first.in_time = std::min(first.in_time.value_or(*time.in_time), *time.in_time);
}

std::optional<SendTime> SendTimes::take(const sim::Link& link) {
  const auto found = times_.find(link);
  if (found == times_.end() || found->second.empty()) return std::nullopt;
  const SendTime time = found->second.front();
  found->second.pop_front();
  return time;
}

}  // namespace droptest::comm
