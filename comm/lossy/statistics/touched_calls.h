// SPDX-License-Identifier: Apache-2.0
// Which collectives lost nothing on any rank: one bit per call and rank, combined when statistics are collected.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "comm/lossy/flows/flow_ledger.h"
#include "sim/state_visitor.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// One group, the same on all its members, and no other group of the run: a rank's group numbers are all different, so
/// two groups of one number share no member.
struct GroupIdentity {
  GroupNumber number = 0;
  std::uint16_t lowest_world_rank = 0;
  friend auto operator<=>(const GroupIdentity&, const GroupIdentity&) = default;
};

/// One rank's record of the calls of a traffic class.
class TouchedCalls {
 public:
  /// The calls of one group in program order; bit i is set where this rank saw a loss in call i.
  struct Calls {
    std::uint64_t count = 0;
    std::vector<std::uint64_t> touched;
    void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, count, touched); }
  };

  /// A collective of a group that all its members note.
  void note_collective(sim::TrafficClass traffic_class, const GroupIdentity& group, Touch touch);
  /// A message that this rank received: its own verdict is final.
  void note_message(sim::TrafficClass traffic_class, Touch touch);

  /// Calls whose verdict is final, counted on one rank.
  struct Settled {
    std::uint64_t calls = 0;
    std::uint64_t untouched = 0;
  };

  const std::map<GroupIdentity, Calls>& open(sim::TrafficClass traffic_class) const;
  const Settled& settled(sim::TrafficClass traffic_class) const;

  /// Forgets the open calls of a class, and adds `settled`, the share of their combined verdicts that this rank counts.
  void settle(sim::TrafficClass traffic_class, const Settled& settled);

  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, open_, settled_); }

 private:
  std::array<std::map<GroupIdentity, Calls>, sim::kAllTrafficClasses.size()> open_;
  std::array<Settled, sim::kAllTrafficClasses.size()> settled_{};
};

}  // namespace droptest::comm
