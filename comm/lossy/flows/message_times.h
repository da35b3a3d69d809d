// SPDX-License-Identifier: Apache-2.0
// When the messages of a collective leave, and how much of them arrives before a deadline, by link.
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

/// Where on its link a message lies that is sent again until its budget is spent: the clock, which has walked along it,
/// says so to the loss layer.
struct RepeatedMessage {
  sim::MessagePlace place;
  sim::LinkTiming timing;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, place, timing); }
};

/// The virtual time of a message on its link.
struct MessageTime {
  double departs_seconds = 0;
  double packet_seconds = 0;                ///< of one full packet, with its header, on the link
  std::optional<std::uint64_t> in_time;     ///< its first packets, that arrive before the deadline; absent: all
  std::optional<RepeatedMessage> repeated;  ///< absent: its place is that of its index, and nothing takes time
};

/// Filled before a collective, used up by it: messages of a link in their order.
class MessageTimes {
 public:
  void clear() { times_.clear(); }

  void add(const sim::Link& link, const MessageTime& time) { times_[link].push_back(time); }
  /// The same of a packet that several receivers share: the first departure, the slowest link and the earliest
  /// deadline count.
  void add_shared(sim::Link link, const MessageTime& time);

  /// That of the next message on the link; nothing, where nothing is known.
  std::optional<MessageTime> take(const sim::Link& link);

 private:
  std::map<sim::Link, std::deque<MessageTime>> times_;
};

}  // namespace droptest::comm
