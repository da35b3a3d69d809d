// SPDX-License-Identifier: Apache-2.0
// The number of contributions in a partial sum, element by element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Consecutive elements with the same number of contributions in their sums.
struct CountRun {
  std::uint64_t elems = 0;
  std::uint64_t contributions = 0;

  friend bool operator==(const CountRun&, const CountRun&) = default;
};

/// The counts of a message, as runs. Losses are rare, so the runs are few.
class ContributionCounts {
 public:
  /// Starts with one contribution, the rank's own, in every element.
  void start(std::uint64_t count_elems);

  /// The runs of `elements`, in order.
  std::vector<CountRun> of(sim::ElementRange elements) const;

  /// Adds the counts of an arrived partial sum to `elements`; `runs` cover as many elements.
  void add(sim::ElementRange elements, std::span<const CountRun> runs);

 private:
  struct Run {
    std::uint64_t end = 0;
    std::uint64_t contributions = 0;
  };
  std::vector<Run> runs_;
  std::vector<Run> merged_;  // scratch of add()
};

}  // namespace droptest::comm
