// SPDX-License-Identifier: Apache-2.0
// What loss does to results: error against the exact collective, and the difference between ranks.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "comm/communicator.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/statistics/sample_sums.h"
#include "comm/lossy/statistics/touched_steps.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// One rank's samples: since the start, and since the interval was last taken.
class ResultSampler {
 public:
  /// Which rank of the group counts the call.
  enum class CountCall : std::uint8_t { kHere, kElsewhere };

  /// Adds the error of `result` against `exact`, which have equal shapes. Integers are not sampled.
  void compare(const LayerKey& key, ConstTensor exact, ConstTensor result, CountCall count);

  /// Adds the difference between ranks of results that ought to be equal. Ranks: all of `group`, with equal shapes;
  /// each adds what all ranks make of its part of the elements. Equal bits give exactly zero. Throws: what the reliable
  /// `group` throws.
  void compare_ranks(Communicator& group, const LayerKey& key, ConstTensor result);

  const SampleSums& total(sim::TrafficClass traffic_class) const { return total_[index(traffic_class)]; }
  /// Since the start, by class and layer.
  const std::map<LayerKey, SampleSums>& layers() const { return layers_; }
  /// The interval's sums; the next interval begins.
  SampleSums take_interval(sim::TrafficClass traffic_class);

 private:
  static std::size_t index(sim::TrafficClass c) { return static_cast<std::size_t>(c); }
  void add(const LayerKey& key, const SampleSums& sums);

  std::array<SampleSums, sim::kAllTrafficClasses.size()> total_{};
  std::array<SampleSums, sim::kAllTrafficClasses.size()> interval_{};
  std::map<LayerKey, SampleSums> layers_;
  Scratch unused_;  // an output that a reduction leaves alone
};

}  // namespace droptest::comm
