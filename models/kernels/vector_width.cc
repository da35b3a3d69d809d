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

const char* vector_width_name(VectorWidth width) {
  switch (width) {
    case VectorWidth::kBaseline:
      return "baseline";
    case VectorWidth::kAvx2:
      return "avx2";
    case VectorWidth::kAvx512:
      return "avx512";
  }
  return "";
}

}  // namespace droptest::models
