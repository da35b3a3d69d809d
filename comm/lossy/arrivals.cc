// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/arrivals.h"

#include <algorithm>

namespace droptest::comm {

std::uint64_t Arrivals::take(const sim::Link& link, std::uint64_t packets) {
  const auto found = in_time_.find(link);
  if (found == in_time_.end() || found->second.empty()) return packets;
  const std::uint64_t in_time = found->second.front();
  found->second.pop_front();
  return std::min(in_time, packets);
}

}  // namespace droptest::comm
