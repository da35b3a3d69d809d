// SPDX-License-Identifier: Apache-2.0
// Loops compiled for several vector widths, of which the processor's widest runs.
#pragma once

#include <cstdint>

namespace droptest::models {

enum class VectorWidth : std::uint8_t { kBaseline, kAvx2, kAvx512 };

/// The widest vectors that this processor has and that the build knows.
VectorWidth widest_vectors();

#if defined(__x86_64__)
#if defined(__clang__)
#define DROPTEST_AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define DROPTEST_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
// `flatten` draws the loops and all that they call into the function, so that they are compiled for its instructions;
// functions that are not drawn in stay plain code, which runs everywhere.
template <class Loops>
[[gnu::target("avx2"), gnu::flatten]] void run_avx2(const Loops& loops) {
  loops();
}
template <class Loops>
[[gnu::target(DROPTEST_AVX512), gnu::flatten]] void run_avx512(const Loops& loops) {
  loops();
}
#endif

/// Calls loops(), as compiled for vectors of that width. Determinism: loops whose sums go through lanes.h give the same
/// bits for every width, because no width contracts a product and a sum.
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
