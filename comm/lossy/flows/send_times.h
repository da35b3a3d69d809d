// SPDX-License-Identifier: Apache-2.0
// The departures of messages, and the packets that are in time for a deadline or a quorum, by link.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"
#include "sim/state_visitor.h"
#include "sim/time/link_cost.h"

namespace droptest::comm {

/// The position and the timing of a message on a link that sends lost packets again, as the clock knows them.
struct ResentMessage {
  sim::MessagePosition place;
  sim::LinkTiming timing;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, place, timing); }
};

/// The virtual time of a message on its link.
struct SendTime {
  double departs_seconds = 0;
  double packet_seconds = 0;              ///< time of a full packet with its header on the link
  std::optional<std::uint64_t> in_time;   ///< number of first packets in time (deadline or quorum); absent: all
  std::optional<ResentMessage> repeated;  ///< absent: nothing is sent again
  bool is_stopped = false;                ///< whether the clock stands still
};

/// The times of a call's messages, by link in the order of the messages. Filled before the call, which uses them up.
class SendTimes {
 public:
  void clear() { times_.clear(); }

  void add(const sim::Link& link, const SendTime& time) { times_[link].push_back(time); }
  /// Adds the time, to one receiver, of a message whose packets all receivers share: the first departure, the slowest
  /// link and the smallest number of packets in time count.
  void add_shared(sim::Link link, const SendTime& time);

  /// The time of the next message on the link; absent if none is known.
  std::optional<SendTime> take(const sim::Link& link);

 private:
  std::map<sim::Link, std::deque<SendTime>> times_;
};

}  // namespace droptest::comm
