// SPDX-License-Identifier: Apache-2.0
#include "sim/random/draw_words.h"

#include <Random123/philox.h>

#include <algorithm>
#include <string>

#include "sim/error.h"
#include "sim/random/threshold.h"

namespace droptest::sim {
namespace {

/// Philox blocks in a word of 64 packets, four packets each.
constexpr std::uint32_t kBlocks = 16;

/// What all words of one call share.
struct Stream {
  std::uint64_t seed;
  PhiloxCounter counter;  ///< of block 0: its first two fields are 0
  std::uint64_t first_word;
};

/// A threshold in [1, 2^32] as the largest 32-bit draw below it: the compare then needs 32 bits only.
std::uint32_t largest_below(std::uint64_t threshold) { return static_cast<std::uint32_t>(threshold - 1); }

/// Draw k of block j is draws[k][j]: lanes are blocks, so that each step of Philox is one plain loop over them.
using WordDraws = std::uint32_t[4][kBlocks];

[[gnu::always_inline]] inline void draw_word(const Stream& stream, std::uint64_t word, WordDraws& draws) {
  // Counted modulo 2^58 words. The first block is a multiple of 16, so adding a lane to its low half never carries.
  const std::uint64_t first_block = (stream.first_word + word) << 6 >> 2;
  const auto low = static_cast<std::uint32_t>(first_block);
  const auto high = static_cast<std::uint32_t>(first_block >> 32);
  const philox4x32_key_t key = {
      {static_cast<std::uint32_t>(stream.seed), static_cast<std::uint32_t>(stream.seed >> 32)}};
  for (std::uint32_t j = 0; j < kBlocks; ++j) {
    const philox4x32_ctr_t counter = {{low + j, high, stream.counter[2], stream.counter[3]}};
    const philox4x32_ctr_t block = philox4x32_R(10, counter, key);
    draws[0][j] = block.v[0];
    draws[1][j] = block.v[1];
    draws[2][j] = block.v[2];
    draws[3][j] = block.v[3];
  }
}

[[gnu::always_inline]] inline std::uint64_t at_most(const WordDraws& draws, std::uint32_t largest) {
  std::uint64_t bits[kBlocks];
  for (std::uint32_t j = 0; j < kBlocks; ++j) {
    const std::uint32_t nibble = std::uint32_t{draws[0][j] <= largest} | std::uint32_t{draws[1][j] <= largest} << 1 |
                                 std::uint32_t{draws[2][j] <= largest} << 2 |
                                 std::uint32_t{draws[3][j] <= largest} << 3;
    bits[j] = std::uint64_t{nibble} << (4 * j);
  }
  std::uint64_t word = 0;
  for (std::uint32_t j = 0; j < kBlocks; ++j) word |= bits[j];
  return word;
}

[[gnu::always_inline]] inline void one_threshold(const Stream& stream, std::uint32_t largest,
                                                 std::span<std::uint64_t> below) {
  WordDraws draws;
  for (std::size_t w = 0; w < below.size(); ++w) {
    draw_word(stream, w, draws);
    below[w] = at_most(draws, largest);
  }
}

[[gnu::always_inline]] inline void two_thresholds(const Stream& stream, std::uint32_t largest_a, std::uint64_t* below_a,
                                                  std::uint32_t largest_b, std::span<std::uint64_t> below_b) {
  WordDraws draws;
  for (std::size_t w = 0; w < below_b.size(); ++w) {
    draw_word(stream, w, draws);
    below_a[w] = at_most(draws, largest_a);
    below_b[w] = at_most(draws, largest_b);
  }
}

[[gnu::always_inline]] inline void values_of_word(const Stream& stream, std::array<std::uint32_t, 64>& values) {
  WordDraws draws;
  draw_word(stream, 0, draws);
  for (std::uint32_t j = 0; j < kBlocks; ++j) {
    for (std::uint32_t k = 0; k < 4; ++k) values[4 * j + k] = draws[k][j];
  }
}

void values_baseline(const Stream& s, std::array<std::uint32_t, 64>& values) { values_of_word(s, values); }
void one_baseline(const Stream& s, std::uint32_t largest, std::span<std::uint64_t> below) {
  one_threshold(s, largest, below);
}
void two_baseline(const Stream& s, std::uint32_t largest_a, std::uint64_t* below_a, std::uint32_t largest_b,
                  std::span<std::uint64_t> below_b) {
  two_thresholds(s, largest_a, below_a, largest_b, below_b);
}

#if defined(__x86_64__)
// The same loops for processors with wider vectors; integers only, so the results are the same.
[[gnu::target("avx2")]] void one_avx2(const Stream& s, std::uint32_t largest, std::span<std::uint64_t> below) {
  one_threshold(s, largest, below);
}
[[gnu::target("avx2")]] void two_avx2(const Stream& s, std::uint32_t largest_a, std::uint64_t* below_a,
                                      std::uint32_t largest_b, std::span<std::uint64_t> below_b) {
  two_thresholds(s, largest_a, below_a, largest_b, below_b);
}
[[gnu::target("avx2")]] void values_avx2(const Stream& s, std::array<std::uint32_t, 64>& values) {
  values_of_word(s, values);
}
bool has_avx2() { return __builtin_cpu_supports("avx2") != 0; }
#else
bool has_avx2() { return false; }
const auto one_avx2 = one_baseline;
const auto two_avx2 = two_baseline;
const auto values_avx2 = values_baseline;
#endif

Stream stream_of(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first_word) {
  return {seed, link_counter(link, purpose, 0), first_word};
}

/// Thresholds that need no draw: never and always.
bool is_certain(std::uint64_t threshold) {
  DROPTEST_CHECK(threshold <= kCertain, "threshold " + std::to_string(threshold));
  return threshold == 0 || threshold == kCertain;
}
void fill_certain(std::uint64_t threshold, std::span<std::uint64_t> below) {
  std::fill(below.begin(), below.end(), threshold == 0 ? 0 : ~std::uint64_t{0});
}

}  // namespace

void draws_below(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first_word,
                 std::uint64_t threshold, std::span<std::uint64_t> below) {
  if (is_certain(threshold)) return fill_certain(threshold, below);
  const Stream stream = stream_of(seed, link, purpose, first_word);
  (has_avx2() ? one_avx2 : one_baseline)(stream, largest_below(threshold), below);
}

void draws_below(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first_word,
                 std::uint64_t threshold_a, std::span<std::uint64_t> below_a, std::uint64_t threshold_b,
                 std::span<std::uint64_t> below_b) {
  DROPTEST_CHECK(below_a.size() == below_b.size(),
                 std::to_string(below_a.size()) + " and " + std::to_string(below_b.size()) + " words");
  if (is_certain(threshold_a) || is_certain(threshold_b)) {
    draws_below(seed, link, purpose, first_word, threshold_a, below_a);
    draws_below(seed, link, purpose, first_word, threshold_b, below_b);
    return;
  }
  const Stream stream = stream_of(seed, link, purpose, first_word);
  (has_avx2() ? two_avx2 : two_baseline)(stream, largest_below(threshold_a), below_a.data(), largest_below(threshold_b),
                                         below_b);
}

std::array<std::uint32_t, 64> draw_values(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t word) {
  std::array<std::uint32_t, 64> values;
  (has_avx2() ? values_avx2 : values_baseline)(stream_of(seed, link, purpose, word), values);
  return values;
}

}  // namespace droptest::sim
