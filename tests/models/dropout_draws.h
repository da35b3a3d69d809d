// SPDX-License-Identifier: Apache-2.0
// Dropout masks from separate Philox calls, by the definition in models/kernels/dropout.h.
#pragma once

#include <cstdint>

#include "models/kernels/dropout.h"
#include "sim/random/philox.h"
#include "sim/random/threshold.h"

namespace droptest::models {

/// The factor of an element: 0 or 1 / (1 - probability); 1 without dropout.
inline double factor_of(const DropoutMask& m, std::int64_t sample, std::int64_t head, std::int64_t position,
                        std::int64_t element) {
  if (m.probability == 0) return 1;
  const auto word = [](auto value) { return static_cast<std::uint32_t>(value); };
  const std::uint32_t purpose = word(m.purpose) << 16;
  const sim::PhiloxBlock of_tensor =
      sim::philox(m.seed, {word(sample), word(m.step), word(m.place) << 16 | word(head), purpose});
  const std::uint64_t key = std::uint64_t{of_tensor[1]} << 32 | of_tensor[0];
  const std::int64_t within = element % 64;
  const sim::PhiloxBlock block = sim::philox(key, {word(element / 64 * 16 + within % 16), word(position), 0, purpose});
  const bool lost = block[static_cast<std::size_t>(within / 16)] < sim::probability_threshold(m.probability);
  return lost ? 0 : 1 / (1 - m.probability);
}

/// The factor of the probability of a key for a query. Sequences are whole, and positions count from 0.
inline double factor_of_key(const DropoutMask& m, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) {
  return factor_of(m, m.first_sample + b, m.first_head + h, m.first_position + q, m.first_position + k);
}

/// A dropout mask of attention probabilities in which no number is 0.
inline DropoutMask dropout_of_keys(double probability) {
  DropoutMask m;
  m.probability = probability;
  m.seed = 77;
  m.purpose = sim::Purpose::kAttentionDropout;
  m.step = 5;
  m.place = 3;
  m.first_sample = 6;
  m.first_head = 2;
  m.first_position = 57;
  return m;
}

}  // namespace droptest::models
