// SPDX-License-Identifier: Apache-2.0
// The state of the loss layer on one rank.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/statistics/result_sampler.h"
#include "comm/lossy/statistics/verdict_record.h"
#include "comm/started/queued_calls.h"
#include "sim/state_visitor.h"

namespace droptest::comm {

class StartedLossyCall;  // comm/lossy/started_lossy_call.h

/// The state that all communicators of one rank share, because its links are independent of groups.
struct RankState {
  RankState(const LossyOptions& options, int world_rank);
  VirtualClock* clock_or_null() { return clock ? &*clock : nullptr; }

  /// Computes the times of started collectives, in the order of their starts: of all, or up to one of the calls. Sends
  /// have theirs since their starts. If fates depend on time, it does nothing: collectives get theirs when they run.
  void play_started(const StartedLossyCall* until = nullptr);
  /// Called before a blocking collective, and before all else that waits for the collectives that the rank has started.
  void run_collectives() { queue.run_all(); }
  /// Moves the rank's clock to the ends of the started calls.
  void pass_started();
  /// Adds the samples of a call to those of the rank, after the samples of all calls before it, so that sums do not
  /// depend on the order of the waits.
  void add_samples(std::uint64_t number, const LayerKey& key, const SampleSums& sums);

  void visit_state(sim::StateVisitor& visitor);

  QueuedCalls queue;                      ///< collectives that run when the rank waits
  std::deque<StartedLossyCall*> started;  ///< works under way, in the order of their starts
  FlowLedger ledger;
  std::optional<VirtualClock> clock;
  bool fates_need_times = false;  ///< whether fates are drawn only when times are known
  VerdictRecord verdicts;
  ResultSampler sampler;
  std::uint64_t sampled_calls = 0;  ///< sampled calls planned so far
  std::uint64_t samples_added = 0;  ///< calls with their sums in `sampler`
  /// Sums that wait for those of earlier calls, by number of their call.
  std::map<std::uint64_t, std::pair<LayerKey, SampleSums>> early_samples;
  std::uint64_t sample_every_steps;
  std::uint64_t step = 0;
  std::uint64_t world_step = 0;  ///< the step of the communicator that was not split
  std::uint64_t open_steps = 0;  ///< steps since the last collection of all ranks' verdicts
  bool step_is_sampled = false;
  int lossless_scopes = 0;
  int protected_scopes = 0;
  GroupNumber next_group = 1;
  std::map<GroupNumber, LossyCommunicator*> groups;  ///< the communicators of this rank that are alive
};

}  // namespace droptest::comm
