// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/vector_width.h"

namespace droptest::models {

VectorWidth widest_vectors() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    return VectorWidth::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") != 0) return VectorWidth::kAvx2;
#endif
  return VectorWidth::kBaseline;
}

}  // namespace droptest::models
