// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/core_shares.h"

#include <algorithm>

#include "sim/error.h"

namespace droptest::experiments {

CoreShares::CoreShares(const std::vector<int>& cores, std::size_t jobs) : shares_(jobs) {
  if (jobs > cores.size()) return;
  for (std::size_t j = 0; j < jobs; ++j) {
    const auto begin = cores.begin() + static_cast<std::ptrdiff_t>(j * cores.size() / jobs);
    const auto end = cores.begin() + static_cast<std::ptrdiff_t>((j + 1) * cores.size() / jobs);
    shares_[j].cores.assign(begin, end);
  }
}

std::size_t CoreShares::take() {
  const auto free = std::find_if(shares_.begin(), shares_.end(), [](const Share& share) { return !share.taken; });
  DROPTEST_CHECK(free != shares_.end(), "more jobs than shares of cores");
  free->taken = true;
  return static_cast<std::size_t>(free - shares_.begin());
}

void CoreShares::give_back(std::size_t place) { shares_[place].taken = false; }

const std::vector<int>& CoreShares::cores(std::size_t place) const { return shares_[place].cores; }

}  // namespace droptest::experiments
