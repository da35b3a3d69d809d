// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/touch_record.h"

namespace droptest::comm {

void TouchRecord::note_collective(const LayerKey& key, const GroupIdentity& group, std::uint64_t step, Touch touch) {
  OpenCalls& calls = calls_[index_of(key.traffic_class)].open[group];
  if (calls.total % 64 == 0) calls.touched.push_back(0);
  if (touch == Touch::kTouched) calls.touched.back() |= std::uint64_t{1} << (calls.total % 64);
  ++calls.total;
  note_step(key, step, touch);
}

void TouchRecord::note_message(const LayerKey& key, std::uint64_t step, Touch touch) {
  calls_[index_of(key.traffic_class)].settled += {1, touch == Touch::kUntouched ? 1U : 0U};
  note_step(key, step, touch);
}

void TouchRecord::note_step(const LayerKey& key, std::uint64_t step, Touch touch) {
  Touch& of_step = steps_[key].open.try_emplace(step, Touch::kUntouched).first->second;
  if (touch == Touch::kTouched) of_step = touch;
}

void TouchRecord::settle_calls(sim::TrafficClass traffic_class, const Verdicts& settled) {
  Calls& calls = calls_[index_of(traffic_class)];
  calls.open.clear();
  calls.settled += settled;
}

void TouchRecord::settle_steps(const LayerKey& key, std::uint64_t end, const Verdicts& settled) {
  Steps& steps = steps_[key];
  steps.open.erase(steps.open.begin(), steps.open.lower_bound(end));
  steps.settled += settled;
}

}  // namespace droptest::comm
