// SPDX-License-Identifier: Apache-2.0
// The virtual time of a group's collectives.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
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

/// The properties of a call at its start, which are needed when its times are computed.
struct CallStart {
  Delivery delivery = Delivery::kByNetwork;
  std::uint64_t step = 0;
  bool is_stopped = false;   ///< whether the clock stood still
  double ready_seconds = 0;  ///< time at which the rank had its data
  /// Positions of the links that send again, before the call's messages. A send or a receive has only its own link. A
  /// collective has, for each half that sends again, the links to each member of the group, then each member's link to
  /// every destination.
  std::vector<LinkPosition> positions;
};

/// The times, in seconds, at which a message is ready at its sender and at which it departs. They travel ahead of the
/// message.
using Departure = std::array<double, 2>;

/// Computes the end of each call of one group for this rank. Ranks tell each other their times of readiness, and the
/// positions of links that send again, over a reliable communicator. Then each rank computes the whole collective, hop
/// by hop. Fates are pure functions, so all ranks get equal times without further messages. A call begins at the rank's
/// clock, or later when its ports are free, so the calls of one rank follow each other, and computation overlaps with
/// them. Ranks: all of the group play the same collectives, in the order of their starts; the two ends of a pair play
/// their messages in the order of their starts. Determinism: with given compute times the ends are a pure function of
/// (seed, program), equal on every backend.
class GroupTimeline {
 public:
  /// `group`, `clock` and `ledger` are borrowed, and outlive this. Other users of `group` use it in the same order on
  /// all ranks. `ledger` has the positions of the rank's links.
  GroupTimeline(Communicator& group, GroupNumber number, VirtualClock& clock, const FlowLedger& ledger);

  /// Records the start of a call, before the call takes packet indices. Messages that arrive for certain are sent once.
  CallStart start(const CallArguments& call, Delivery delivery, std::uint64_t step, double ready_seconds) const;

  /// The times of a collective for this rank. It ends when all data have arrived. Notes the times of its messages in
  /// the clock's SendTimes, if fates or deadlines need them.
  CallTiming play_collective(const CallArguments& call, const CallStart& start);
  /// The times of a send and its departure for the receiver. A send ends when the rank's port is free again.
  std::pair<CallTiming, Departure> play_send(const CallArguments& call, const CallStart& start);
  /// The times of a receive, which ends when all data have arrived.
  CallTiming play_recv(const CallArguments& call, const CallStart& start, const Departure& departure);

  /// The communicator on which departures travel.
  Communicator& channel() { return group_; }
  static const Message& message_of_departures();

  void visit_state(sim::StateVisitor& visitor) { visit_value(visitor, timing_); }

 private:
  /// ready_seconds: the time at which all ranks have their data. begins: for each rank, the time at which it has its
  /// data and its ports are free.
  struct Clocks {
    double ready_seconds = 0;
    std::vector<double> begins;
  };
  static CollectiveTiming::What what_of(const CallArguments& call, const CallStart& start);
  /// Calls visit(link, its place in CallStart::positions) for each link that sends again.
  template <class Visit>
  void visit_positions(const CollectiveTiming::What& what, const Visit& visit) const;
  Clocks exchange_clocks(const CollectiveTiming::What& what, const CallStart& start, double begin_seconds);
  Transmission time_message(const CallArguments& call, const CallStart& start, int source, int destination,
                            std::uint64_t elements, double departs);

  Communicator& group_;
  GroupNumber number_;
  VirtualClock& clock_;
  const FlowLedger& ledger_;
  bool notes_times_;  // whether the loss layer needs the times of messages
  CollectiveTiming timing_;
};

/// Whether the losses of a message depend on its time of departure: by a loss process that depends on time, a deadline,
/// a quorum, or a recovery that sends again in the slots of a clock.
bool time_feeds_fates(const Network& network, const TimeModel& model);

}  // namespace droptest::comm
