// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/core_shares.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include "sim/error.h"

namespace droptest::experiments {

std::vector<int> allowed_cores() {
  // The kernel refuses a mask that is smaller than its own; no call tells the size of that.
  for (std::size_t most = 1024; most <= (std::size_t{1} << 20); most *= 2) {
    const auto free_mask = [](cpu_set_t* mask) { CPU_FREE(mask); };
    const std::unique_ptr<cpu_set_t, decltype(free_mask)> mask(CPU_ALLOC(most), free_mask);
    const std::size_t bytes = CPU_ALLOC_SIZE(most);
    DROPTEST_CHECK(mask != nullptr, "no memory for a mask of cores");
    CPU_ZERO_S(bytes, mask.get());
    if (::sched_getaffinity(0, bytes, mask.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cores;
    for (std::size_t core = 0; core < most; ++core) {
      if (CPU_ISSET_S(core, bytes, mask.get())) cores.push_back(static_cast<int>(core));
    }
    return cores;
  }
  throw CommError("cannot find the cores that this process may use: " + std::generic_category().message(errno));
}

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
