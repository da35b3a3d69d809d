// SPDX-License-Identifier: Apache-2.0
// Masks of dropout in a kernel: the draws of DropoutRow, with the same bits.
#pragma once

#include <cstdint>

#include "models/kernels/dropout.h"
#include "sim/random/draw_kernels.h"

namespace droptest::models {

struct DrawnWords {
  std::uint32_t at[4];
};

/// sim::philox() on a device.
__device__ inline DrawnWords philox_words(std::uint64_t key, DrawnWords x) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < sim::kPhiloxRounds; ++round) {
    const std::uint64_t a = std::uint64_t{sim::kPhiloxM0} * x.at[0];
    const std::uint64_t b = std::uint64_t{sim::kPhiloxM1} * x.at[2];
    x = {{static_cast<std::uint32_t>(b >> 32) ^ x.at[1] ^ k0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ x.at[3] ^ k1, static_cast<std::uint32_t>(a)}};
    k0 += sim::kPhiloxW0;
    k1 += sim::kPhiloxW1;
  }
  return x;
}

/// A DropoutMask as a kernel takes it. Off: all factors are 1.
class DropoutDraws {
 public:
  DropoutDraws() = default;
  explicit DropoutDraws(const DropoutMask& mask)
      : mask_(mask),
        is_on_(mask.is_on()),
        largest_lost_(static_cast<std::uint32_t>(sim::probability_threshold(mask.probability)) - 1),
        scale_(static_cast<float>(1 / (1 - mask.probability))) {}

  __device__ bool is_on() const { return is_on_; }

  /// What the rows of a sequence and a head have in common.
  __device__ std::uint64_t key(std::int64_t sample, std::int64_t head) const {
    const DrawnWords words = philox_words(
        mask_.seed, {{static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(mask_.step),
                      static_cast<std::uint32_t>(mask_.place) << 16 | static_cast<std::uint32_t>(head), last_word()}});
    return std::uint64_t{words.at[1]} << 32 | words.at[0];
  }
  /// 0 or 1 / (1 - probability).
  __device__ float factor(std::uint64_t key, std::int64_t position, std::int64_t element) const {
    const auto within = static_cast<std::uint32_t>(element % DropoutRow::kGroup);
    const auto block = static_cast<std::uint32_t>(element / DropoutRow::kGroup) * kBlocks + within % kBlocks;
    const DrawnWords words = philox_words(key, {{block, static_cast<std::uint32_t>(position), 0, last_word()}});
    const std::uint32_t k = within / kBlocks;
    const std::uint32_t word = k < 2 ? (k == 0 ? words.at[0] : words.at[1]) : (k == 2 ? words.at[2] : words.at[3]);
    return word <= largest_lost_ ? 0.0F : scale_;
  }

  /// A row of a tensor [rows, width], as DropoutRow::of_row().
  struct Row {
    std::uint64_t key = 0;
    std::int64_t position = 0;
  };
  __device__ Row row(std::int64_t row) const {
    if (!is_on_) return {};
    const std::int64_t number = mask_.first_row + row;
    const std::int64_t token = number % mask_.length;
    const std::int64_t skipped = token < mask_.tokens_before_gap ? 0 : mask_.gap;
    return {key(mask_.first_sample + number / mask_.length, 0), mask_.first_position + token + skipped};
  }
  __device__ float factor(const Row& row, std::int64_t element) const {
    return is_on_ ? factor(row.key, row.position, element) : 1.0F;
  }

  /// The keys of a head's queries, of attention: positions count from the first one here.
  __device__ std::uint64_t key_of_head(std::int64_t batch, std::int64_t head) const {
    return is_on_ ? key(mask_.first_sample + batch, mask_.first_head + head) : 0;
  }
  __device__ float factor_of_pair(std::uint64_t key, std::int64_t query, std::int64_t key_position) const {
    return is_on_ ? factor(key, mask_.first_position + query, mask_.first_position + key_position) : 1.0F;
  }

 private:
  static constexpr std::uint32_t kBlocks = 16;
  __device__ std::uint32_t last_word() const { return static_cast<std::uint32_t>(mask_.purpose) << 16; }

  DropoutMask mask_{};
  bool is_on_ = false;
  std::uint32_t largest_lost_ = 0;
  float scale_ = 1;
};

}  // namespace droptest::models
