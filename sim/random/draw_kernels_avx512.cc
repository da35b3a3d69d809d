// SPDX-License-Identifier: Apache-2.0
#include "sim/random/draw_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <iterator>
#include <numeric>

// Lanes are the 16 Philox blocks of a word. A compare then gives, for each of a block's four draws, one bit per block;
// the four masks are spread to every fourth bit of the word.
#define DROPTEST_AVX512 gnu::target("avx512f,avx512dq,bmi2")

namespace droptest::sim {
namespace {

constexpr int kXorOfThree = 0x96;
constexpr __mmask16 kEven = 0x5555;
constexpr __mmask16 kOdd = 0xaaaa;

/// Draw k of block j is lane j of draws[k].
struct WordDraws {
  __m512i draws[4];
};

[[DROPTEST_AVX512, gnu::always_inline]] inline __m512i lanes(std::uint32_t value) {
  return _mm512_set1_epi32(static_cast<int>(value));
}

/// The keys of all rounds.
struct RoundKeys {
  [[DROPTEST_AVX512, gnu::always_inline]] inline explicit RoundKeys(std::uint64_t seed) {
    const __m512i round = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const auto low = static_cast<std::uint32_t>(seed);
    const auto high = static_cast<std::uint32_t>(seed >> 32);
    _mm512_store_si512(k0, _mm512_add_epi32(lanes(low), _mm512_mullo_epi32(round, lanes(kPhiloxW0))));
    _mm512_store_si512(k1, _mm512_add_epi32(lanes(high), _mm512_mullo_epi32(round, lanes(kPhiloxW1))));
  }
  alignas(64) std::uint32_t k0[16];
  alignas(64) std::uint32_t k1[16];
};

/// Eight blocks: counters in the low halves of lanes of 64 bits, where a product leaves its low half. The high halves
/// hold anything, which the next product does not read.
struct EightBlocks {
  __m512i c0, c1, c2, c3;

  [[DROPTEST_AVX512, gnu::always_inline]] inline void round(__m512i k0, __m512i k1) {
    const __m512i p0 = _mm512_mul_epu32(c0, lanes(kPhiloxM0));
    const __m512i p1 = _mm512_mul_epu32(c2, lanes(kPhiloxM1));
    const __m512i high0 = _mm512_shuffle_epi32(p0, _MM_PERM_DDBB);
    const __m512i high1 = _mm512_shuffle_epi32(p1, _MM_PERM_DDBB);
    c0 = _mm512_ternarylogic_epi32(high1, c1, k0, kXorOfThree);
    c2 = _mm512_ternarylogic_epi32(high0, c3, k1, kXorOfThree);
    c1 = p1;
    c3 = p0;
  }
};

// The low halves of `even` and `odd` in turns.
[[DROPTEST_AVX512, gnu::always_inline]] inline __m512i in_turns(__m512i even, __m512i odd) {
  return _mm512_mask_shuffle_epi32(even, kOdd, odd, _MM_PERM_CCAA);
}

// The high halves of `even` and `odd` in turns.
[[DROPTEST_AVX512, gnu::always_inline]] inline __m512i high_in_turns(__m512i even, __m512i odd) {
  return _mm512_mask_shuffle_epi32(odd, kEven, even, _MM_PERM_DDBB);
}

/// Gives the draws of one word after the other. All blocks of a word share their counter but for its first field, and
/// after the first round two fields of the four. So the first two rounds need one product instead of four.
class WordDrawer {
 public:
  [[DROPTEST_AVX512, gnu::always_inline]] inline explicit WordDrawer(const DrawStream& stream)
      : keys_(stream.seed), counter_(stream.counter), block_(stream.first_block(0)) {
    const std::uint64_t p1 = std::uint64_t{kPhiloxM1} * counter_[2];
    high_p1_ = static_cast<std::uint32_t>(p1 >> 32);
    xor_c2_ = lanes(counter_[3] ^ keys_.k1[0]);
    xor_c0_ = lanes(static_cast<std::uint32_t>(p1) ^ keys_.k0[1]);
    begin_high();
  }

  [[DROPTEST_AVX512, gnu::always_inline]] inline WordDraws next() {
    EightBlocks even = after_third_round(even_);
    EightBlocks odd = after_third_round(odd_);
    rounds(even, odd);
    advance();
    return last_round(even, odd);
  }

 private:
  // Values shared by all blocks with one high half of their number. The first product, M0 times the low half, grows
  // evenly.
  [[DROPTEST_AVX512, gnu::always_inline]] inline void begin_high() {
    const __m512i first = lanes(static_cast<std::uint32_t>(block_));
    const __m512i m0 = lanes(kPhiloxM0);
    even_ = _mm512_mul_epu32(_mm512_add_epi32(first, _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0)), m0);
    odd_ = _mm512_mul_epu32(_mm512_add_epi32(first, _mm512_set_epi64(15, 13, 11, 9, 7, 5, 3, 1)), m0);
    const std::uint32_t c0 = high_p1_ ^ static_cast<std::uint32_t>(block_ >> 32) ^ keys_.k0[0];
    const std::uint64_t p0 = std::uint64_t{kPhiloxM0} * c0;
    xor_second_c2_ = lanes(static_cast<std::uint32_t>(p0 >> 32) ^ keys_.k1[1]);
    xor_third_c2_ = lanes(static_cast<std::uint32_t>(p0) ^ keys_.k1[2]);
  }

  [[DROPTEST_AVX512, gnu::always_inline]] inline void advance() {
    constexpr std::uint64_t kBlocks = 16;
    const std::uint64_t before = block_;
    block_ = (block_ + kBlocks) << 2 >> 2;  // blocks are counted modulo 2^62
    if ((before ^ block_) >> 32 != 0) return begin_high();
    const __m512i step = _mm512_set1_epi64(kBlocks * std::uint64_t{kPhiloxM0});
    even_ = _mm512_add_epi64(even_, step);
    odd_ = _mm512_add_epi64(odd_, step);
  }

  [[DROPTEST_AVX512, gnu::always_inline]] inline EightBlocks after_third_round(__m512i p0) const {
    const __m512i c2 = _mm512_xor_si512(_mm512_shuffle_epi32(p0, _MM_PERM_DDBB), xor_c2_);
    const __m512i second_p1 = _mm512_mul_epu32(c2, lanes(kPhiloxM1));
    const __m512i second_c0 = _mm512_xor_si512(_mm512_shuffle_epi32(second_p1, _MM_PERM_DDBB), xor_c0_);
    const __m512i second_c2 = _mm512_xor_si512(p0, xor_second_c2_);
    const __m512i third_p0 = _mm512_mul_epu32(second_c0, lanes(kPhiloxM0));
    const __m512i third_p1 = _mm512_mul_epu32(second_c2, lanes(kPhiloxM1));
    return {_mm512_ternarylogic_epi32(_mm512_shuffle_epi32(third_p1, _MM_PERM_DDBB), second_p1, lanes(keys_.k0[2]),
                                      kXorOfThree),
            third_p1, _mm512_xor_si512(_mm512_shuffle_epi32(third_p0, _MM_PERM_DDBB), xor_third_c2_), third_p0};
  }

  // Not unrolled: many words take as long either way, few take longer unrolled.
  [[DROPTEST_AVX512, gnu::always_inline]] inline void rounds(EightBlocks& even, EightBlocks& odd) const {
#pragma GCC unroll 1
    for (int round = 3; round < kPhiloxRounds - 1; ++round) {
      const __m512i k0 = lanes(keys_.k0[round]);
      const __m512i k1 = lanes(keys_.k1[round]);
      even.round(k0, k1);
      odd.round(k0, k1);
    }
  }

  [[DROPTEST_AVX512, gnu::always_inline]] inline WordDraws last_round(const EightBlocks& even,
                                                                      const EightBlocks& odd) const {
    const __m512i even_p0 = _mm512_mul_epu32(even.c0, lanes(kPhiloxM0));
    const __m512i even_p1 = _mm512_mul_epu32(even.c2, lanes(kPhiloxM1));
    const __m512i odd_p0 = _mm512_mul_epu32(odd.c0, lanes(kPhiloxM0));
    const __m512i odd_p1 = _mm512_mul_epu32(odd.c2, lanes(kPhiloxM1));
    const __m512i k0 = lanes(keys_.k0[kPhiloxRounds - 1]);
    const __m512i k1 = lanes(keys_.k1[kPhiloxRounds - 1]);
    return {{_mm512_ternarylogic_epi32(high_in_turns(even_p1, odd_p1), in_turns(even.c1, odd.c1), k0, kXorOfThree),
             in_turns(even_p1, odd_p1),
             _mm512_ternarylogic_epi32(high_in_turns(even_p0, odd_p0), in_turns(even.c3, odd.c3), k1, kXorOfThree),
             in_turns(even_p0, odd_p0)}};
  }

  RoundKeys keys_;
  PhiloxCounter counter_;
  std::uint64_t block_;
  std::uint32_t high_p1_;
  __m512i even_, odd_;  // M0 times the first field, of the word's blocks
  __m512i xor_c2_, xor_c0_, xor_second_c2_, xor_third_c2_;
};

[[DROPTEST_AVX512, gnu::always_inline]] inline std::uint64_t at_most(const WordDraws& word, __m512i largest) {
  constexpr std::uint64_t kEveryFourth = 0x1111111111111111;
  return _pdep_u64(_mm512_cmple_epu32_mask(word.draws[0], largest), kEveryFourth) |
         _pdep_u64(_mm512_cmple_epu32_mask(word.draws[1], largest), kEveryFourth << 1) |
         _pdep_u64(_mm512_cmple_epu32_mask(word.draws[2], largest), kEveryFourth << 2) |
         _pdep_u64(_mm512_cmple_epu32_mask(word.draws[3], largest), kEveryFourth << 3);
}

[[DROPTEST_AVX512]] void one(const DrawStream& stream, std::uint32_t largest, std::span<std::uint64_t> below) {
  WordDrawer drawer(stream);
  const __m512i bound = lanes(largest);
  for (std::uint64_t& word : below) word = at_most(drawer.next(), bound);
}

[[DROPTEST_AVX512]] void two(const DrawStream& stream, std::uint32_t largest_a, std::uint64_t* below_a,
                             std::uint32_t largest_b, std::span<std::uint64_t> below_b) {
  WordDrawer drawer(stream);
  const __m512i bound_a = lanes(largest_a);
  const __m512i bound_b = lanes(largest_b);
  for (std::size_t w = 0; w < below_b.size(); ++w) {
    const WordDraws draws = drawer.next();
    below_a[w] = at_most(draws, bound_a);
    below_b[w] = at_most(draws, bound_b);
  }
}

[[DROPTEST_AVX512]] void all_values(const DrawStream& stream, std::array<std::uint32_t, 64>& values) {
  const WordDraws word = WordDrawer(stream).next();
  alignas(64) std::uint32_t draws[4][16];
  for (unsigned k = 0; k < 4; ++k) _mm512_store_si512(draws[k], word.draws[k]);
  for (unsigned i = 0; i < 64; ++i) values[i] = draws[i % 4][i / 4];
}

[[DROPTEST_AVX512]] std::uint64_t mixed(const PhiloxCounter& fields, std::span<const std::uint64_t> places,
                                        std::span<const std::uint64_t> contents) {
  __m512i sum = _mm512_setzero_si512();
  for (std::size_t i = 0; i < places.size(); i += 8) {
    const std::size_t left = places.size() - i;
    const auto used = static_cast<__mmask8>(left >= 8 ? 0xffU : (1U << left) - 1);
    const __m512i place = _mm512_maskz_loadu_epi64(used, &places[i]);
    const __m512i content = _mm512_maskz_loadu_epi64(used, &contents[i]);
    EightBlocks blocks = {place, _mm512_srli_epi64(place, 32), lanes(fields[2]), lanes(fields[3])};
    __m512i k0 = content;
    __m512i k1 = _mm512_srli_epi64(content, 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      blocks.round(k0, k1);
      k0 = _mm512_add_epi32(k0, lanes(kPhiloxW0));
      k1 = _mm512_add_epi32(k1, lanes(kPhiloxW1));
    }
    sum = _mm512_mask_add_epi64(sum, used, sum, in_turns(blocks.c0, blocks.c1));
  }
  // Without the compiler's own reduction: it adds signed numbers.
  alignas(64) std::uint64_t lanes_of_sum[8];
  _mm512_store_si512(lanes_of_sum, sum);
  return std::accumulate(std::begin(lanes_of_sum), std::end(lanes_of_sum), std::uint64_t{0});
}

}  // namespace

std::optional<DrawKernels> avx512_draw_kernels() {
  const bool usable = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                      __builtin_cpu_supports("bmi2") != 0;
  if (!usable) return std::nullopt;
  return DrawKernels{"avx512", one, two, all_values, mixed};
}

}  // namespace droptest::sim

#else

namespace droptest::sim {

std::optional<DrawKernels> avx512_draw_kernels() { return std::nullopt; }

}  // namespace droptest::sim

#endif
