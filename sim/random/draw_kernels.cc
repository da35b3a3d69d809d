// SPDX-License-Identifier: Apache-2.0
#include "sim/random/draw_kernels.h"

#include <Random123/philox.h>

#include <vector>

namespace droptest::sim {
namespace {

/// Philox blocks in a word of 64 packets, four packets each.
constexpr std::uint32_t kBlocks = 16;

/// Draw k of block j is draws[k][j]: lanes are blocks, so that each step of Philox is one plain loop over them.
using WordDraws = std::uint32_t[4][kBlocks];

[[gnu::always_inline]] inline void draw_word(const DrawStream& stream, std::uint64_t word, WordDraws& draws) {
  const std::uint64_t first_block = stream.first_block(word);
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

void one(const DrawStream& stream, std::uint32_t largest, std::span<std::uint64_t> below) {
  WordDraws draws;
  for (std::size_t w = 0; w < below.size(); ++w) {
    draw_word(stream, w, draws);
    below[w] = at_most(draws, largest);
  }
}

void two(const DrawStream& stream, std::uint32_t largest_a, std::uint64_t* below_a, std::uint32_t largest_b,
         std::span<std::uint64_t> below_b) {
  WordDraws draws;
  for (std::size_t w = 0; w < below_b.size(); ++w) {
    draw_word(stream, w, draws);
    below_a[w] = at_most(draws, largest_a);
    below_b[w] = at_most(draws, largest_b);
  }
}

void all_values(const DrawStream& stream, std::array<std::uint32_t, 64>& values) {
  WordDraws draws;
  draw_word(stream, 0, draws);
  for (std::uint32_t j = 0; j < kBlocks; ++j) {
    for (std::uint32_t k = 0; k < 4; ++k) values[4 * j + k] = draws[k][j];
  }
}

std::uint64_t mixed(const PhiloxCounter& fields, std::span<const std::uint64_t> places,
                    std::span<const std::uint64_t> contents) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const philox4x32_ctr_t counter = {
        {static_cast<std::uint32_t>(places[i]), static_cast<std::uint32_t>(places[i] >> 32), fields[2], fields[3]}};
    const philox4x32_key_t key = {
        {static_cast<std::uint32_t>(contents[i]), static_cast<std::uint32_t>(contents[i] >> 32)}};
    const philox4x32_ctr_t block = philox4x32_R(10, counter, key);
    sum += std::uint64_t{block.v[1]} << 32 | block.v[0];
  }
  return sum;
}

std::vector<DrawKernels> find_usable() {
  std::vector<DrawKernels> usable = {baseline_draw_kernels()};
  if (const auto avx2 = avx2_draw_kernels()) usable.push_back(*avx2);
  if (const auto avx512 = avx512_draw_kernels()) usable.push_back(*avx512);
  return usable;
}

}  // namespace

DrawKernels baseline_draw_kernels() { return {"baseline", one, two, all_values, mixed}; }

std::span<const DrawKernels> usable_draw_kernels() {
  // Never destroyed: programs that lose packets draw at their end, too, for the counts.
  static const auto* const kUsable = new std::vector<DrawKernels>(find_usable());
  return *kUsable;
}

}  // namespace droptest::sim
