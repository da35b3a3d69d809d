// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/run_counts.h"

namespace droptest::sim {

std::map<std::uint64_t, std::uint64_t> RunCounts::bursts() const {
  std::map<std::uint64_t, std::uint64_t> all = long_bursts_;
  for (std::uint64_t length = 0; length < kBurstBins; ++length) {
    if (bursts_[length] > 0) all[length] = bursts_[length];
  }
  return all;
}

std::vector<std::uint64_t> RunCounts::gaps() const {
  std::vector<std::uint64_t> all(gaps_.begin(), gaps_.end());
  for (const auto& [i, number] : long_gaps_) {
    all.resize(i + 1);
    all[i] = number;
  }
  while (!all.empty() && all.back() == 0) all.pop_back();
  return all;
}

}  // namespace droptest::sim
