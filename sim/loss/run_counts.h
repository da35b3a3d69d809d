// SPDX-License-Identifier: Apache-2.0
// Numbers of bursts, gaps and stretches by their lengths.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "sim/error.h"
#include "sim/state_visitor.h"

namespace droptest::sim {

/// Counts of runs that have ended.
class RunCounts {
 public:
  /// A length of 0 is no burst.
  void count_burst(std::uint64_t length) {
    if (length == 0) return;
    ++(length < kBurstBins ? bursts_[length] : long_bursts_[length]);
  }
  /// `length` is at least 1.
  void count_gap(std::uint64_t length) {
    DROPTEST_CHECK(length > 0, "a gap without packets");
    const auto i = static_cast<std::size_t>(std::bit_width(length) - 1);
    ++(i < kGapBins ? gaps_[i] : long_gaps_[i]);
  }
  /// A length of 0 is no stretch.
  void count_stretch(std::uint64_t length) {
    if (length > 0) ++stretches_[length];
  }

  /// Number of bursts by length in packets.
  std::map<std::uint64_t, std::uint64_t> bursts() const;
  /// Number of gaps of 2^i to 2^(i + 1) - 1 packets, by i.
  std::vector<std::uint64_t> gaps() const;
  /// Number of stretches by length in packets.
  const std::map<std::uint64_t, std::uint64_t>& stretches() const { return stretches_; }

  void visit_state(StateVisitor& visitor) {
    visit_values(visitor, bursts_, gaps_, long_bursts_, long_gaps_, stretches_);
  }

 private:
  static constexpr std::size_t kBurstBins = 16;
  static constexpr std::size_t kGapBins = 24;
  std::array<std::uint64_t, kBurstBins> bursts_{};      ///< short bursts by length
  std::array<std::uint64_t, kGapBins> gaps_{};          ///< short gaps of 2^i to 2^(i + 1) - 1 packets, by i
  std::map<std::uint64_t, std::uint64_t> long_bursts_;  ///< bursts of kBurstBins packets and more, by length
  std::map<std::size_t, std::uint64_t> long_gaps_;      ///< gaps of 2^kGapBins packets and more, by i
  std::map<std::uint64_t, std::uint64_t> stretches_;
};

}  // namespace droptest::sim
