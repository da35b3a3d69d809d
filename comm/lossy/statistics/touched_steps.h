// SPDX-License-Identifier: Apache-2.0
// In which steps a class lost nothing in a layer: a verdict per step and rank, combined when statistics are collected.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "comm/lossy/flows/flow_ledger.h"
#include "sim/state_visitor.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// What diagnostics are told apart by: the messages of one class in one transformer block; -1 for those of none.
struct LayerKey {
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  int layer = -1;
  friend auto operator<=>(const LayerKey&, const LayerKey&) = default;
};

/// One rank's record of the steps in which each class and layer had traffic. Notes come in the order of the steps.
class TouchedSteps {
 public:
  struct Step {
    std::uint64_t step = 0;
    Touch touch = Touch::kUntouched;  ///< kTouched: this rank saw a loss
  };
  /// Steps whose verdict is final, counted on one rank.
  struct Settled {
    std::uint64_t steps = 0;
    std::uint64_t untouched = 0;
  };
  struct Record {
    std::vector<Step> open;
    Settled settled;
    void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, open, settled); }
  };

  void note(const LayerKey& key, std::uint64_t step, Touch touch) {
    std::vector<Step>& open = records_[key].open;
    if (open.empty() || open.back().step != step) open.push_back({step, Touch::kUntouched});
    if (touch == Touch::kTouched) open.back().touch = touch;
  }

  const std::map<LayerKey, Record>& records() const { return records_; }

  /// Forgets the open steps before `step`, and adds `settled`, the share of their verdicts that this rank counts.
  void settle(const LayerKey& key, std::uint64_t step, const Settled& settled);

  void visit_state(sim::StateVisitor& visitor) { visit_value(visitor, records_); }

 private:
  std::map<LayerKey, Record> records_;
};

}  // namespace droptest::comm
