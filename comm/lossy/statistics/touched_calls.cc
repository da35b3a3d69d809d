// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/touched_calls.h"

namespace droptest::comm {
namespace {

std::size_t index_of(sim::TrafficClass traffic_class) { return static_cast<std::size_t>(traffic_class); }

}  // namespace

void TouchedCalls::note_collective(sim::TrafficClass traffic_class, const GroupIdentity& group, Touch touch) {
  Calls& calls = open_[index_of(traffic_class)][group];
  if (calls.count % 64 == 0) calls.touched.push_back(0);
  if (touch == Touch::kTouched) calls.touched.back() |= std::uint64_t{1} << (calls.count % 64);
  ++calls.count;
}

void TouchedCalls::note_message(sim::TrafficClass traffic_class, Touch touch) {
  Settled& settled = settled_[index_of(traffic_class)];
  ++settled.calls;
  if (touch == Touch::kUntouched) ++settled.untouched;
}

const std::map<GroupIdentity, TouchedCalls::Calls>& TouchedCalls::open(sim::TrafficClass traffic_class) const {
  return open_[index_of(traffic_class)];
}

const TouchedCalls::Settled& TouchedCalls::settled(sim::TrafficClass traffic_class) const {
  return settled_[index_of(traffic_class)];
}

void TouchedCalls::settle(sim::TrafficClass traffic_class, const Settled& settled) {
  open_[index_of(traffic_class)].clear();
  settled_[index_of(traffic_class)].calls += settled.calls;
  settled_[index_of(traffic_class)].untouched += settled.untouched;
}

}  // namespace droptest::comm
