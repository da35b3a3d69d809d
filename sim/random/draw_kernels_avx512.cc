// SPDX-License-Identifier: Apache-2.0
#include "sim/random/draw_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

// Lanes are the 16 Philox blocks of a word. A compare then gives, for each of a block's four draws, one bit per block;
// the four masks are spread to every fourth bit of the word.
#define DROPTEST_AVX512 gnu::target("avx512f,avx512dq,bmi2")

namespace droptest::sim {
namespace {

/// Draw k of block j is lane j of draws[k].
struct WordDraws {
  __m512i draws[4];
};

/// The 32-bit lanes of x times m: high and low halves of the products.
struct Products {
  __m512i high, low;
};
[[DROPTEST_AVX512, gnu::always_inline]] inline Products multiply(__m512i x, __m512i m) {
  const __m512i even = _mm512_mul_epu32(x, m);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
  constexpr __mmask16 kOdd = 0xaaaa;
  return {_mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), kOdd, odd),
          _mm512_mask_mov_epi32(even, kOdd, _mm512_slli_epi64(odd, 32))};
}

[[DROPTEST_AVX512, gnu::always_inline]] inline __m512i lanes(std::uint32_t value) {
  return _mm512_set1_epi32(static_cast<int>(value));
}

// Source: Salmon et al., SC 2011, section 3.3 and table 2: ten rounds, multipliers M and Weyl constants W.
[[DROPTEST_AVX512, gnu::always_inline]] inline WordDraws draw_word(const DrawStream& stream, std::uint64_t word) {
  const std::uint64_t block = stream.first_block(word);
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i c0 = _mm512_add_epi32(lanes(static_cast<std::uint32_t>(block)), lane);
  __m512i c1 = lanes(static_cast<std::uint32_t>(block >> 32));
  __m512i c2 = lanes(stream.counter[2]);
  __m512i c3 = lanes(stream.counter[3]);
  const __m512i m0 = lanes(0xD2511F53U);
  const __m512i m1 = lanes(0xCD9E8D57U);
  auto k0 = static_cast<std::uint32_t>(stream.seed);
  auto k1 = static_cast<std::uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Products p0 = multiply(c0, m0);
    const Products p1 = multiply(c2, m1);
    constexpr int kXorOfThree = 0x96;
    c0 = _mm512_ternarylogic_epi32(p1.high, c1, lanes(k0), kXorOfThree);
    c2 = _mm512_ternarylogic_epi32(p0.high, c3, lanes(k1), kXorOfThree);
    c1 = p1.low;
    c3 = p0.low;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

[[DROPTEST_AVX512, gnu::always_inline]] inline std::uint64_t at_most(const WordDraws& word, __m512i largest) {
  std::uint64_t bits = 0;
  for (unsigned k = 0; k < 4; ++k) {
    bits |= _pdep_u64(_mm512_cmple_epu32_mask(word.draws[k], largest), std::uint64_t{0x1111111111111111} << k);
  }
  return bits;
}

[[DROPTEST_AVX512]] void one(const DrawStream& stream, std::uint32_t largest, std::span<std::uint64_t> below) {
  const __m512i bound = lanes(largest);
  for (std::size_t w = 0; w < below.size(); ++w) below[w] = at_most(draw_word(stream, w), bound);
}

[[DROPTEST_AVX512]] void two(const DrawStream& stream, std::uint32_t largest_a, std::uint64_t* below_a,
                             std::uint32_t largest_b, std::span<std::uint64_t> below_b) {
  const __m512i bound_a = lanes(largest_a);
  const __m512i bound_b = lanes(largest_b);
  for (std::size_t w = 0; w < below_b.size(); ++w) {
    const WordDraws draws = draw_word(stream, w);
    below_a[w] = at_most(draws, bound_a);
    below_b[w] = at_most(draws, bound_b);
  }
}

[[DROPTEST_AVX512]] void all_values(const DrawStream& stream, std::array<std::uint32_t, 64>& values) {
  const WordDraws word = draw_word(stream, 0);
  alignas(64) std::uint32_t draws[4][16];
  for (unsigned k = 0; k < 4; ++k) _mm512_store_si512(draws[k], word.draws[k]);
  for (unsigned i = 0; i < 64; ++i) values[i] = draws[i % 4][i / 4];
}

}  // namespace

const DrawKernels* avx512_draw_kernels() {
  static constexpr DrawKernels kKernels = {"avx512", one, two, all_values};
  const bool usable = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                      __builtin_cpu_supports("bmi2") != 0;
  return usable ? &kKernels : nullptr;
}

}  // namespace droptest::sim

#else

namespace droptest::sim {

const DrawKernels* avx512_draw_kernels() { return nullptr; }

}  // namespace droptest::sim

#endif
