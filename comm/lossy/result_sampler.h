// SPDX-License-Identifier: Apache-2.0
// What loss does to results: error against the exact collective, and the difference between ranks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// Sums over sampled calls of one traffic class, of one rank or added up over ranks.
struct SampleSums {
  std::uint64_t calls = 0;  ///< counted on one rank of the group
  double error_energy = 0;
  double exact_energy = 0;
  double result_energy = 0;
  double inner_product = 0;
  double divergence_max = 0;
  double divergence_energy = 0;  ///< sum over elements and ranks of |value - mean over ranks|^2
  double divergence_elems = 0;   ///< elements x ranks in that sum

  void add(const SampleSums& other);
  double nmse() const;            ///< error_energy / exact_energy; 0 without samples
  double cosine() const;          ///< 1 without samples
  double divergence_rms() const;  ///< 0 without samples
};

/// One rank's samples: since the start, and since the interval was last taken.
class ResultSampler {
 public:
  /// Which rank of the group counts the call.
  enum class CountCall : std::uint8_t { kHere, kElsewhere };

  /// Adds the error of `result` against `exact`, which have equal shapes. Integers are not sampled.
  void compare(sim::TrafficClass traffic_class, ConstTensor exact, ConstTensor result, CountCall count);

  /// Adds the difference between ranks of results that ought to be equal. Ranks: all of `group`, with equal shapes.
  /// Equal bits give exactly zero. Throws: what the reliable `group` throws.
  void compare_ranks(Communicator& group, sim::TrafficClass traffic_class, ConstTensor result);

  const SampleSums& total(sim::TrafficClass traffic_class) const { return total_[index(traffic_class)]; }
  /// The interval's sums; the next interval begins.
  SampleSums take_interval(sim::TrafficClass traffic_class);

 private:
  static std::size_t index(sim::TrafficClass c) { return static_cast<std::size_t>(c); }
  void add(sim::TrafficClass traffic_class, const SampleSums& sums);

  std::array<SampleSums, sim::kAllTrafficClasses.size()> total_{};
  std::array<SampleSums, sim::kAllTrafficClasses.size()> interval_{};
  std::vector<double> reference_;
  std::vector<double> difference_;
  std::vector<double> sums_;
  std::vector<double> extremes_;
};

}  // namespace droptest::comm
