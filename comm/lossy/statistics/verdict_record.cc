// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/verdict_record.h"

namespace droptest::comm {

void VerdictRecord::note_collective(const LayerKey& key, const GroupIdentity& group, std::uint64_t step,
                                    Verdict verdict) {
  OpenCalls& calls = calls_[index_of(key.traffic_class)].open[group];
  if (calls.total % 64 == 0) calls.lossy.push_back(0);
  if (verdict == Verdict::kLossy) calls.lossy.back() |= std::uint64_t{1} << (calls.total % 64);
  ++calls.total;
  note_step(key, step, verdict);
}

void VerdictRecord::note_message(const LayerKey& key, std::uint64_t step, Verdict verdict) {
  calls_[index_of(key.traffic_class)].settled += {1, verdict == Verdict::kLossless ? 1U : 0U};
  note_step(key, step, verdict);
}

void VerdictRecord::note_step(const LayerKey& key, std::uint64_t step, Verdict verdict) {
  Verdict& of_step = steps_[key].open.try_emplace(step, Verdict::kLossless).first->second;
  if (verdict == Verdict::kLossy) of_step = verdict;
}

void VerdictRecord::settle_calls(sim::TrafficClass traffic_class, const Verdicts& settled) {
  Calls& calls = calls_[index_of(traffic_class)];
  calls.open.clear();
  calls.settled += settled;
}

void VerdictRecord::settle_steps(const LayerKey& key, std::uint64_t end, const Verdicts& settled) {
  Steps& steps = steps_[key];
  steps.open.erase(steps.open.begin(), steps.open.lower_bound(end));
  steps.settled += settled;
}

}  // namespace droptest::comm
