// SPDX-License-Identifier: Apache-2.0
// How many contributions a partial sum has in it, element by element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Consecutive elements whose sums have equally many contributions in them.
struct CountRun {
  std::uint64_t elems = 0;
  std::uint64_t contributions = 0;

  friend bool operator==(const CountRun&, const CountRun&) = default;
};

/// The counts of a message, as runs: losses are rare, so there are few.
class ContributionCounts {
 public:
  /// One contribution, the rank's own, everywhere.
  void start(std::uint64_t count_elems);

  /// The runs of some elements, in order.
  std::vector<CountRun> of(sim::ElementRange elements) const;

  /// Adds those of an arrived partial sum to some elements; the sizes of `runs` add up to their number.
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
