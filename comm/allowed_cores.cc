// SPDX-License-Identifier: Apache-2.0
#include "comm/allowed_cores.h"

#include <sched.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "sim/error.h"

namespace droptest::comm {

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

}  // namespace droptest::comm
