// SPDX-License-Identifier: Apache-2.0
// Loops that are compiled for several vector widths; the widest that the processor supports runs.
#pragma once

#include <cstdint>

namespace droptest::models {

enum class VectorWidth : std::uint8_t { kBaseline, kAvx2, kAvx512 };

/// The widest vectors that this processor and this build support.
VectorWidth widest_vectors();

#if defined(__x86_64__)
#if defined(__clang__)
#define DROPTEST_AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define DROPTEST_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
// `flatten` inlines the loops and the functions that they call, so that they are compiled for these instructions.
// Functions that are not inlined stay baseline code, which runs everywhere.
template <class Loops>
[[gnu::target("avx2"), gnu::flatten]] void run_avx2(const Loops& loops) {
  loops();
}
template <class Loops>
[[gnu::target(DROPTEST_AVX512), gnu::flatten]] void run_avx512(const Loops& loops) {
  loops();
}
#endif

/// Calls the version of loops() for vectors of that width. Determinism: loops that sum with lanes.h give the same bits
/// for every width, because no version contracts a multiplication and an addition.
template <class Loops>
void run_vectorised(VectorWidth width, const Loops& loops) {
#if defined(__x86_64__)
  if (width == VectorWidth::kAvx512) return run_avx512(loops);
  if (width == VectorWidth::kAvx2) return run_avx2(loops);
#endif
  static_cast<void>(width);
  loops();
}

}  // namespace droptest::models
