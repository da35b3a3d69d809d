// SPDX-License-Identifier: Apache-2.0
// The virtual time of a group's collectives.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/lossy/clock/collective_timing.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/network.h"
#include "sim/state_visitor.h"

namespace droptest::comm {

/// Computes the end of each call of one group for this rank. Ranks tell each other their times of readiness, and the
/// positions of links that send again, over a reliable communicator; then each rank computes the whole collective, hop
/// by hop, from pure fates, so that all agree without further messages. A call begins at the rank's clock, or later
/// when its ports are free, so the calls of one rank follow each other, and computation overlaps with them. Ranks: all
/// of the group call the same, in the order of the starts of calls. Determinism: with given compute times the ends are
/// a pure function of (seed, program), equal on every backend.
class GroupTimeline {
 public:
  /// `group`, `clock` and `ledger` are borrowed, and outlive this. Other users of `group` use it in the same order on
  /// all ranks. `ledger` has the positions of the rank's links before each call.
  GroupTimeline(Communicator& group, GroupNumber number, VirtualClock& clock, const FlowLedger& ledger);

  /// The times of `call` for this rank, where the call was ready to begin at `ready_seconds`. A send ends when the
  /// rank's port is free again, other calls end when all data have arrived. Messages that arrive for certain are sent
  /// once. Notes the times of its messages in the clock's MessageTimes, where fates or deadlines need them.
  CallTimes play(const CallArguments& call, Arrival arrival, double ready_seconds);

  /// The training step that the next collectives belong to; the loss of a link may change with it.
  void begin_step(std::uint64_t step) { timing_.begin_step(step); }

  void visit_state(sim::StateVisitor& visitor) { visit_value(visitor, timing_); }

 private:
  /// When all ranks have their data, and when each also has its ports.
  struct Clocks {
    double ready_seconds = 0;
    std::vector<double> begins;
  };
  Clocks exchange_clocks(const CollectiveTiming::What& what, double ready_seconds, double begin_seconds);
  CallTimes play_collective(const CallArguments& call, const CollectiveTiming::What& what, double ready_seconds);
  CallTimes play_send(const CallArguments& call, const CollectiveTiming::What& what, double ready_seconds);
  CallTimes play_recv(const CallArguments& call, const CollectiveTiming::What& what, double ready_seconds);
  void note_message(const TimedMessage& message);
  void find_link(const CollectiveTiming::What& what, int source, int destination);

  Communicator& group_;
  GroupNumber number_;
  VirtualClock& clock_;
  const FlowLedger& ledger_;
  bool notes_times_;  // whether the loss layer needs them
  CollectiveTiming timing_;
};

/// Whether the losses of a message depend on its time of departure: on a process that depends on time, a deadline, or a
/// recovery that sends again in the slots of a clock.
bool time_feeds_fates(const Network& network, const TimeModel& model);

}  // namespace droptest::comm
