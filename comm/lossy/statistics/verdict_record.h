// SPDX-License-Identifier: Apache-2.0
// The calls and steps with lost packets: a verdict per rank, combined by the collection of statistics.
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

/// Identifies one group of the run, with equal values on all its members. A rank's group numbers are all different, so
/// two groups of one number share no member.
struct GroupIdentity {
  GroupNumber number = 0;
  std::uint16_t lowest_world_rank = 0;
  friend auto operator<=>(const GroupIdentity&, const GroupIdentity&) = default;
};

/// Diagnostics are separate for each traffic class and each transformer block; -1: messages of no block.
struct LayerKey {
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  int layer = -1;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, traffic_class, layer); }
  friend auto operator<=>(const LayerKey&, const LayerKey&) = default;
};

/// Verdicts on calls or on steps.
struct Verdicts {
  std::uint64_t total = 0;
  std::uint64_t untouched = 0;  ///< verdicts without a loss

  void operator+=(const Verdicts& other) { total += other.total, untouched += other.untouched; }
};

/// One rank's record of its calls and of the steps with traffic. A verdict is open while another rank may have seen a
/// loss in the same call or step. Later it is settled: final, and counted on one rank.
class VerdictRecord {
 public:
  /// The collectives of one group in program order; bit i is set if this rank saw a loss in collective i.
  struct OpenCalls {
    std::uint64_t total = 0;
    std::vector<std::uint64_t> lossy;
    void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, total, lossy); }
  };
  struct Calls {
    std::map<GroupIdentity, OpenCalls> open;
    Verdicts settled;
    void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, open, settled); }
  };
  /// Open steps are in ascending order.
  struct Steps {
    std::map<std::uint64_t, Verdict> open;
    Verdicts settled;
    void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, open, settled); }
  };

  /// Notes a collective of a group; all its members note it.
  void note_collective(const LayerKey& key, const GroupIdentity& group, std::uint64_t step, Verdict verdict);
  /// Notes a message that this rank received: its verdict is settled.
  void note_message(const LayerKey& key, std::uint64_t step, Verdict verdict);

  const Calls& calls(sim::TrafficClass traffic_class) const { return calls_[index_of(traffic_class)]; }
  const std::map<LayerKey, Steps>& steps() const { return steps_; }

  /// Forgets the open calls of a class, and adds `settled`, the share of their combined verdicts that this rank counts.
  void settle_calls(sim::TrafficClass traffic_class, const Verdicts& settled);
  /// Forgets the open steps before `end`, and adds `settled`, the share of their combined verdicts that this rank
  /// counts.
  void settle_steps(const LayerKey& key, std::uint64_t end, const Verdicts& settled);

  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, calls_, steps_); }

 private:
  static std::size_t index_of(sim::TrafficClass traffic_class) { return static_cast<std::size_t>(traffic_class); }
  void note_step(const LayerKey& key, std::uint64_t step, Verdict verdict);

  std::array<Calls, sim::kAllTrafficClasses.size()> calls_;
  std::map<LayerKey, Steps> steps_;
};

}  // namespace droptest::comm
