// SPDX-License-Identifier: Apache-2.0
#include "models/process_settings.h"

#include <malloc.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>

namespace droptest::models {

void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kLargestKeptBytes = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLargestKeptBytes);
  mallopt(M_TRIM_THRESHOLD, kLargestKeptBytes);
#endif
}

void let_waiting_threads_sleep(char** argv) {
  for (const char* chosen : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}) {
    if (std::getenv(chosen) != nullptr) return;
  }
  // By its own path, not as /proc/self/exe: process listings show the program's name.
  std::array<char, PATH_MAX + 1> path{};
  if (readlink("/proc/self/exe", path.data(), PATH_MAX) <= 0) return;
  setenv("OMP_WAIT_POLICY", "passive", 0);
  setenv("GOMP_SPINCOUNT", "5000", 0);  // about 10 us: shorter than the work between most waits
  execv(path.data(), argv);
  // Where that is not possible the program goes on; it is slower when cores are short.
}

}  // namespace droptest::models
