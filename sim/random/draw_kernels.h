// SPDX-License-Identifier: Apache-2.0
// The inner loops of draw_words.h, once for each width of vectors. All give the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "sim/random/philox.h"

namespace droptest::sim {

// Philox4x32-10: multipliers M and Weyl constants W. Source: Salmon et al., SC 2011, section 3.3 and table 2.
inline constexpr int kPhiloxRounds = 10;
inline constexpr std::uint32_t kPhiloxM0 = 0xD2511F53U;
inline constexpr std::uint32_t kPhiloxM1 = 0xCD9E8D57U;
inline constexpr std::uint32_t kPhiloxW0 = 0x9E3779B9U;
inline constexpr std::uint32_t kPhiloxW1 = 0xBB67AE85U;

/// The seed, the counter and the first word of one call, shared by all its words.
struct DrawStream {
  std::uint64_t seed;
  PhiloxCounter counter;  ///< counter of block 0: its first two fields are 0
  std::uint64_t first_word;

  /// The first of the 16 Philox blocks of a word; blocks are counted modulo 2^62. It is a multiple of 16, so adding a
  /// lane to its low half never carries.
  std::uint64_t first_block(std::uint64_t word) const { return (first_word + word) << 6 >> 2; }
};

/// `largest` is the largest draw that counts as below a threshold, so that compares need 32 bits only.
struct DrawKernels {
  std::string_view name;
  void (*one)(const DrawStream& stream, std::uint32_t largest, std::span<std::uint64_t> below);
  void (*two)(const DrawStream& stream, std::uint32_t largest_a, std::uint64_t* below_a, std::uint32_t largest_b,
              std::span<std::uint64_t> below_b);
  /// Writes the draws of the first word.
  void (*values)(const DrawStream& stream, std::array<std::uint32_t, 64>& values);
  /// sum_of_mixed(), with the link's and the purpose's fields of the counter. Spans of equal length.
  std::uint64_t (*mixed)(const PhiloxCounter& fields, std::span<const std::uint64_t> places,
                         std::span<const std::uint64_t> contents);
};

/// The kernels that this processor can run, the fastest last; the first runs on any processor.
std::span<const DrawKernels> usable_draw_kernels();

/// The kernels in plain loops.
DrawKernels baseline_draw_kernels();
/// The kernels with vectors of 256 or 512 bits; nothing if the compiler or the processor has none.
std::optional<DrawKernels> avx2_draw_kernels();
std::optional<DrawKernels> avx512_draw_kernels();

}  // namespace droptest::sim
