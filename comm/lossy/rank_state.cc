// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/rank_state.h"

#include "comm/lossy/clock/group_timeline.h"
#include "comm/lossy/started_lossy_call.h"
#include "sim/error.h"

namespace droptest::comm {

RankState::RankState(const LossyOptions& options, int world_rank)
    : ledger(options.time ? with_deadlines(options.network, *options.time) : options.network, options.counting),
      sample_every_steps(options.sample_every_steps) {
  if (!options.time) {
    for (const auto& of_class : options.network.classes) {
      if (of_class && of_class->quorum) throw ConfigError("quorum: " + *quorum_refusal(*of_class, nullptr));
    }
    return;
  }
  clock.emplace(options.network, *options.time, world_rank);
  fates_need_times = time_feeds_fates(options.network, *options.time);
}

void RankState::play_started(const StartedLossyCall* until) {
  if (fates_need_times) return;
  for (StartedLossyCall* call : started) {
    if (!call->receives()) call->play();
    if (call == until) return;
  }
}

void RankState::pass_started() {
  play_started();
  for (const StartedLossyCall* call : started) call->pass_time();
}

void RankState::add_samples(std::uint64_t number, const LayerKey& key, const SampleSums& sums) {
  early_samples.emplace(number, std::pair(key, sums));
  for (auto next = early_samples.begin(); next != early_samples.end() && next->first == samples_added;
       next = early_samples.erase(next)) {
    sampler.add(next->second.first, next->second.second);
    ++samples_added;
  }
}

void RankState::visit_state(sim::StateVisitor& visitor) {
  visit_values(visitor, ledger, verdicts, sampler, sampled_calls, samples_added, open_steps);
  if (clock) visit_value(visitor, *clock);
}

}  // namespace droptest::comm
