// SPDX-License-Identifier: Apache-2.0
#include "models/process_settings.h"

#include <malloc.h>

namespace droptest::models {

void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kLargestKeptBytes = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLargestKeptBytes);
  mallopt(M_TRIM_THRESHOLD, kLargestKeptBytes);
#endif
}

void return_freed_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace droptest::models
