// SPDX-License-Identifier: Apache-2.0
#include "sim/random/draw_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

// The same scheme as draw_kernels_avx512.cc, with half as many lanes. Bits are put in their places by shuffles: the
// instruction that spreads bits is slow on some processors of this width.
#define DROPTEST_AVX2 gnu::target("avx2")

namespace droptest::sim {
namespace {

[[DROPTEST_AVX2, gnu::always_inline]] inline __m256i lanes(std::uint32_t value) {
  return _mm256_set1_epi32(static_cast<int>(value));
}

/// The keys of all rounds.
struct RoundKeys {
  explicit RoundKeys(std::uint64_t seed) {
    for (int round = 0; round < kPhiloxRounds; ++round) {
      k0[round] = static_cast<std::uint32_t>(seed) + static_cast<std::uint32_t>(round) * kPhiloxW0;
      k1[round] = static_cast<std::uint32_t>(seed >> 32) + static_cast<std::uint32_t>(round) * kPhiloxW1;
    }
  }
  std::uint32_t k0[kPhiloxRounds];
  std::uint32_t k1[kPhiloxRounds];
};

/// Four blocks: counters in the low halves of lanes of 64 bits, where a product leaves its low half. The high halves
/// hold anything, which the next product does not read.
struct FourBlocks {
  __m256i c0, c1, c2, c3;

  [[DROPTEST_AVX2, gnu::always_inline]] inline void round(__m256i k0, __m256i k1) {
    constexpr int kHighDown = 0xf5;
    const __m256i p0 = _mm256_mul_epu32(c0, lanes(kPhiloxM0));
    const __m256i p1 = _mm256_mul_epu32(c2, lanes(kPhiloxM1));
    c0 = _mm256_xor_si256(_mm256_shuffle_epi32(p1, kHighDown), _mm256_xor_si256(c1, k0));
    c2 = _mm256_xor_si256(_mm256_shuffle_epi32(p0, kHighDown), _mm256_xor_si256(c3, k1));
    c1 = p1;
    c3 = p0;
  }
};

// The low halves of `even` and `odd` in turns.
[[DROPTEST_AVX2, gnu::always_inline]] inline __m256i in_turns(__m256i even, __m256i odd) {
  constexpr int kOdd = 0xaa;
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), kOdd);
}

/// Half of the 16 blocks of a word: draw k of block j is lane j of draws[k].
struct HalfWord {
  __m256i draws[4];
};

[[DROPTEST_AVX2, gnu::always_inline]] inline HalfWord draw_half(const DrawStream& stream, const RoundKeys& keys,
                                                                std::uint64_t block) {
  const __m256i first = lanes(static_cast<std::uint32_t>(block));
  const __m256i c1 = lanes(static_cast<std::uint32_t>(block >> 32));
  const __m256i c2 = lanes(stream.counter[2]);
  const __m256i c3 = lanes(stream.counter[3]);
  FourBlocks even = {_mm256_add_epi32(first, _mm256_set_epi64x(6, 4, 2, 0)), c1, c2, c3};
  FourBlocks odd = {_mm256_add_epi32(first, _mm256_set_epi64x(7, 5, 3, 1)), c1, c2, c3};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m256i k0 = lanes(keys.k0[round]);
    const __m256i k1 = lanes(keys.k1[round]);
    even.round(k0, k1);
    odd.round(k0, k1);
  }
  return {{in_turns(even.c0, odd.c0), in_turns(even.c1, odd.c1), in_turns(even.c2, odd.c2), in_turns(even.c3, odd.c3)}};
}

// Bit 4 j + k: whether draw k of block j is at most `largest`.
[[DROPTEST_AVX2, gnu::always_inline]] inline std::uint32_t at_most(const HalfWord& half, __m256i largest) {
  __m256i below[4];
  for (unsigned k = 0; k < 4; ++k) {
    below[k] = _mm256_cmpeq_epi32(_mm256_min_epu32(half.draws[k], largest), half.draws[k]);
  }
  // A byte for each compare, and in each half of the register those of a draw one after the other.
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(below[0], below[1]), _mm256_packs_epi32(below[2], below[3]));
  const __m256i by_block =
      _mm256_broadcastsi128_si256(_mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0));
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_shuffle_epi8(bytes, by_block)));
}

constexpr std::uint64_t kBlocksOfHalf = 8;

[[DROPTEST_AVX2]] void one(const DrawStream& stream, std::uint32_t largest, std::span<std::uint64_t> below) {
  const RoundKeys keys(stream.seed);
  const __m256i bound = lanes(largest);
  for (std::size_t w = 0; w < below.size(); ++w) {
    const std::uint64_t block = stream.first_block(w);
    const std::uint64_t low = at_most(draw_half(stream, keys, block), bound);
    below[w] = low | std::uint64_t{at_most(draw_half(stream, keys, block + kBlocksOfHalf), bound)} << 32;
  }
}

[[DROPTEST_AVX2]] void two(const DrawStream& stream, std::uint32_t largest_a, std::uint64_t* below_a,
                           std::uint32_t largest_b, std::span<std::uint64_t> below_b) {
  const RoundKeys keys(stream.seed);
  const __m256i bound_a = lanes(largest_a);
  const __m256i bound_b = lanes(largest_b);
  for (std::size_t w = 0; w < below_b.size(); ++w) {
    const std::uint64_t block = stream.first_block(w);
    const HalfWord low = draw_half(stream, keys, block);
    const HalfWord high = draw_half(stream, keys, block + kBlocksOfHalf);
    below_a[w] = at_most(low, bound_a) | std::uint64_t{at_most(high, bound_a)} << 32;
    below_b[w] = at_most(low, bound_b) | std::uint64_t{at_most(high, bound_b)} << 32;
  }
}

[[DROPTEST_AVX2]] void all_values(const DrawStream& stream, std::array<std::uint32_t, 64>& values) {
  const RoundKeys keys(stream.seed);
  for (std::uint32_t half = 0; half < 2; ++half) {
    const HalfWord drawn = draw_half(stream, keys, stream.first_block(0) + half * kBlocksOfHalf);
    alignas(32) std::uint32_t draws[4][kBlocksOfHalf];
    for (unsigned k = 0; k < 4; ++k) _mm256_store_si256(reinterpret_cast<__m256i*>(draws[k]), drawn.draws[k]);
    for (unsigned i = 0; i < 32; ++i) values[32 * half + i] = draws[i % 4][i / 4];
  }
}

}  // namespace

std::optional<DrawKernels> avx2_draw_kernels() {
  if (__builtin_cpu_supports("avx2") == 0) return std::nullopt;
  return DrawKernels{"avx2", one, two, all_values, baseline_draw_kernels().mixed};
}

}  // namespace droptest::sim

#else

namespace droptest::sim {

std::optional<DrawKernels> avx2_draw_kernels() { return std::nullopt; }

}  // namespace droptest::sim

#endif
