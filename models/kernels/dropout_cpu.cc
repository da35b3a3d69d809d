// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/dropout.h"

#include "models/kernels/chunks.h"
#include "models/kernels/vector_width.h"
#include "sim/random/draw_kernels.h"

namespace droptest::models {
namespace {

constexpr std::uint32_t kBlocks = 16;

std::uint32_t purpose_word(const DropoutMask& mask) { return static_cast<std::uint32_t>(mask.purpose) << 16; }

/// The lanes of 16 Philox blocks; their counters differ only in the first word.
struct Lanes {
  std::uint32_t words[4][kBlocks];
};

[[gnu::always_inline]] inline void draw(std::uint64_t key, std::uint32_t first_block, std::uint32_t position,
                                        std::uint32_t last_word, Lanes& x) {
  for (std::uint32_t j = 0; j < kBlocks; ++j) {
    x.words[0][j] = first_block + j;
    x.words[1][j] = position;
    x.words[2][j] = 0;
    x.words[3][j] = last_word;
  }
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < sim::kPhiloxRounds; ++round) {
    for (std::uint32_t j = 0; j < kBlocks; ++j) {
      const std::uint64_t a = std::uint64_t{sim::kPhiloxM0} * x.words[0][j];
      const std::uint64_t b = std::uint64_t{sim::kPhiloxM1} * x.words[2][j];
      x.words[0][j] = static_cast<std::uint32_t>(b >> 32) ^ x.words[1][j] ^ k0;
      x.words[1][j] = static_cast<std::uint32_t>(b);
      x.words[2][j] = static_cast<std::uint32_t>(a >> 32) ^ x.words[3][j] ^ k1;
      x.words[3][j] = static_cast<std::uint32_t>(a);
    }
    k0 += sim::kPhiloxW0;
    k1 += sim::kPhiloxW1;
  }
}

}  // namespace

DropoutRow::DropoutRow(const DropoutMask& mask, std::int64_t sample, std::int64_t head, std::int64_t position)
    : position_(static_cast<std::uint32_t>(position)),
      last_word_(purpose_word(mask)),
      largest_lost_(static_cast<std::uint32_t>(sim::probability_threshold(mask.probability)) - 1),
      scale_(1 / (1 - mask.probability)) {
  const sim::PhiloxBlock of_tensor = sim::philox(
      mask.seed, {static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(mask.step),
                  static_cast<std::uint32_t>(mask.place) << 16 | static_cast<std::uint32_t>(head), purpose_word(mask)});
  key_ = std::uint64_t{of_tensor[1]} << 32 | of_tensor[0];
}

DropoutRow DropoutRow::of_row(const DropoutMask& mask, std::int64_t row) {
  const std::int64_t number = mask.first_row + row;
  const std::int64_t token = number % mask.length;
  const std::int64_t skipped = token < mask.tokens_before_gap ? 0 : mask.gap;
  return {mask, mask.first_sample + number / mask.length, 0, mask.first_position + token + skipped};
}

template <class T>
void DropoutRow::factors(std::int64_t group, T (&to)[kGroup]) const {
  const VectorWidth width = widest_vectors();
  const T scale = static_cast<T>(scale_);
  const std::uint32_t largest_lost = largest_lost_;
  run_vectorised(width, [&] {
    Lanes lanes;
    draw(key_, static_cast<std::uint32_t>(group) * kBlocks, position_, last_word_, lanes);
    for (std::uint32_t k = 0; k < 4; ++k) {
      for (std::uint32_t j = 0; j < kBlocks; ++j) {
        to[kBlocks * k + j] = lanes.words[k][j] <= largest_lost ? T(0) : scale;
      }
    }
  });
}

template <class T>
void drop_elements(const T* from, const DropoutMask& mask, std::int64_t rows, std::int64_t width, T* to,
                   const Team& team) {
  for_vector_chunks(rows, chunk_items(rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T* x = from + i * width;
      T* y = to + i * width;
      for_dropped_row<T>(DropoutRow::of_row(mask, i), 0, width, [x, y](std::int64_t j, T f) { y[j] = f * x[j]; });
    }
  });
}

#define DROPTEST_DROPOUT(T)                                               \
  template void DropoutRow::factors<T>(std::int64_t, T(&)[kGroup]) const; \
  template void drop_elements<T>(const T*, const DropoutMask&, std::int64_t, std::int64_t, T*, const Team&);
DROPTEST_DROPOUT(float)
DROPTEST_DROPOUT(double)
#undef DROPTEST_DROPOUT

}  // namespace droptest::models
