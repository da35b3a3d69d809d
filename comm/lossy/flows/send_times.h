// SPDX-License-Identifier: Apache-2.0
// The departures of the messages of a collective, and the packets that arrive before a deadline, by link.
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

/// The position on its link, with its times, of a message that is sent again until its budget is spent, as the clock
/// knows it.
struct ResentMessage {
  sim::MessagePosition place;
  sim::LinkTiming timing;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, place, timing); }
};

/// The virtual time of a message on its link.
struct SendTime {
  double departs_seconds = 0;
  double packet_seconds = 0;              ///< a full packet with its header takes so long on the link
  std::optional<std::uint64_t> in_time;   ///< its first packets, which arrive before the deadline; absent: all
  std::optional<ResentMessage> repeated;  ///< absent: nothing is sent again
  bool is_stopped = false;                ///< the clock stands still
};

/// Filled before a collective, which uses it up: messages of a link in their order.
class SendTimes {
 public:
  void clear() { times_.clear(); }

  void add(const sim::Link& link, const SendTime& time) { times_[link].push_back(time); }
  /// The same for a packet that several receivers share: with the first departure, the slowest link and the earliest
  /// deadline.
  void add_shared(sim::Link link, const SendTime& time);

  /// The time of the next message on the link; absent where none is known.
  std::optional<SendTime> take(const sim::Link& link);

 private:
  std::map<sim::Link, std::deque<SendTime>> times_;
};

}  // namespace droptest::comm
