// SPDX-License-Identifier: Apache-2.0
// Dropout masks in a kernel: the draws of DropoutRow, bit for bit. The type of the draws is a template argument of the
// kernel, so that a kernel without dropout needs no registers for them.
#pragma once

#include <Random123/philox.h>

#include <cstdint>

#include "models/kernels/dropout.h"
#include "sim/random/threshold.h"

namespace droptest::models {

/// No dropout: all factors are 1.
struct NoDraws {
  struct Row {
    __device__ float factor(std::int64_t /*element*/) const { return 1.0F; }
  };
  __device__ Row row(std::int64_t /*row*/) const { return {}; }
  __device__ std::uint64_t key_of_head(std::int64_t /*batch*/, std::int64_t /*head*/) const { return 0; }
  __device__ Row row_of_query(std::uint64_t /*key*/, std::int64_t /*query*/) const { return {}; }
};

/// The form of a DropoutMask that is on, inside a kernel.
class DropoutDraws {
  using Philox = r123::Philox4x32_R<10>;

 public:
  explicit DropoutDraws(const DropoutMask& mask)
      : mask_(mask),
        largest_lost_(static_cast<std::uint32_t>(sim::probability_threshold(mask.probability)) - 1),
        scale_(static_cast<float>(1 / (1 - mask.probability))) {}

  /// A row of a mask. It keeps the last Philox block, which elements at distances of 16 share.
  class Row {
   public:
    /// The factor of an element: 0 or 1 / (1 - probability).
    __device__ float factor(std::int64_t element) {
      const auto of_row = static_cast<std::uint64_t>(first_element_ + element);
      const auto within = static_cast<std::uint32_t>(of_row % DropoutRow::kGroup);
      const auto block = static_cast<std::uint32_t>(of_row / DropoutRow::kGroup) * kBlocks + within % kBlocks;
      if (block != block_) {
        words_ = words_of(key_, {{block, position_, 0, last_word_}});
        block_ = block;
      }
      const std::uint32_t k = within / kBlocks;
      const std::uint32_t word = k < 2 ? (k == 0 ? words_.v[0] : words_.v[1]) : (k == 2 ? words_.v[2] : words_.v[3]);
      return word <= largest_lost_ ? 0.0F : scale_;
    }

   private:
    friend class DropoutDraws;
    __device__ Row(const DropoutDraws& draws, std::uint64_t key, std::int64_t position, std::int64_t first_element)
        : key_(key),
          position_(static_cast<std::uint32_t>(position)),
          first_element_(first_element),
          last_word_(draws.last_word()),
          largest_lost_(draws.largest_lost_),
          scale_(draws.scale_) {}

    std::uint64_t key_;
    std::uint32_t position_;
    std::int64_t first_element_;
    std::uint32_t last_word_;
    std::uint32_t largest_lost_;
    float scale_;
    std::uint32_t block_ = ~std::uint32_t{0};  ///< the number of the block in words_; initially none
    Philox::ctr_type words_{};
  };

  /// A row of a tensor [rows, width], as DropoutRow::of_row().
  __device__ Row row(std::int64_t row) const {
    const std::int64_t number = mask_.first_row + row;
    const std::int64_t token = number % mask_.length;
    const std::int64_t skipped = token < mask_.tokens_before_gap ? 0 : mask_.gap;
    return {*this, key(mask_.first_sample + number / mask_.length, 0), mask_.first_position + token + skipped, 0};
  }
  /// The Philox key of all queries of a head. `batch` and `head` count from the tensor's first ones.
  __device__ std::uint64_t key_of_head(std::int64_t batch, std::int64_t head) const {
    return key(mask_.first_sample + batch, mask_.first_head + head);
  }
  /// The row of one query; its elements are keys. `query` and the elements count from the tensor's first row.
  __device__ Row row_of_query(std::uint64_t key, std::int64_t query) const {
    return {*this, key, mask_.first_position + query, mask_.first_position};
  }

 private:
  static constexpr std::uint32_t kBlocks = 16;

  static __device__ Philox::ctr_type words_of(std::uint64_t key, const Philox::ctr_type& counter) {
    const Philox::key_type words = {{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}};
    return Philox()(counter, words);
  }
  __device__ std::uint32_t last_word() const { return static_cast<std::uint32_t>(mask_.purpose) << 16; }
  __device__ std::uint64_t key(std::int64_t sample, std::int64_t head) const {
    const Philox::ctr_type words = words_of(
        mask_.seed, {{static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(mask_.step),
                      static_cast<std::uint32_t>(mask_.place) << 16 | static_cast<std::uint32_t>(head), last_word()}});
    return std::uint64_t{words.v[1]} << 32 | words.v[0];
  }

  DropoutMask mask_;
  std::uint32_t largest_lost_;  ///< an element becomes zero if its draw is at most this
  float scale_;
};

/// Calls body(draws) with DropoutDraws if the mask is on, else with NoDraws.
template <class Body>
void with_draws(const DropoutMask& mask, const Body& body) {
  if (mask.is_on()) {
    body(DropoutDraws(mask));
  } else {
    body(NoDraws{});
  }
}

}  // namespace droptest::models
