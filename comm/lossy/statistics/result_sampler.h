// SPDX-License-Identifier: Apache-2.0
// The error of results against the exact collective, and the difference between ranks.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "comm/communicator.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/statistics/sample_sums.h"
#include "comm/lossy/statistics/verdict_record.h"
#include "sim/state_visitor.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// The error of `result` against `exact`, which have equal shapes. All sums are 0 for integers.
SampleSums errors_of(ConstTensor exact, ConstTensor result);

/// The difference between the ranks' results, which are equal without loss. This rank compares the values of all ranks
/// in its part of the elements. `unused` has room for an output that the reduction does not write. Ranks: all of
/// `group`, with equal shapes. Equal bits give exactly zero. Throws: as the reliable `group`.
SampleSums divergence_of(Communicator& group, ConstTensor result, Scratch& unused);

/// One rank's samples since the start, and in the current interval.
class ResultSampler {
 public:
  void add(const LayerKey& key, const SampleSums& sums);

  const SampleSums& total(sim::TrafficClass traffic_class) const { return total_[index(traffic_class)]; }
  /// The sums since the start, by class and layer.
  const std::map<LayerKey, SampleSums>& layers() const { return layers_; }
  /// The sums of the interval; starts the next interval.
  SampleSums take_interval(sim::TrafficClass traffic_class);

  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, total_, interval_, layers_); }

 private:
  static std::size_t index(sim::TrafficClass c) { return static_cast<std::size_t>(c); }

  std::array<SampleSums, sim::kAllTrafficClasses.size()> total_{};
  std::array<SampleSums, sim::kAllTrafficClasses.size()> interval_{};
  std::map<LayerKey, SampleSums> layers_;
};

}  // namespace droptest::comm
