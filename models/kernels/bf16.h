// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of a float. Products take it where the processor multiplies it faster; sums stay float.
#pragma once

#include <cstdint>
#include <span>

#include "models/team.h"

namespace droptest::models {

/// One bfloat16 number, as its bits.
struct Bf16 {
  std::uint16_t bits;
};

/// Whether this processor multiplies bfloat16 (AVX512-BF16).
bool has_bf16_products();

/// output = scale x input, rounded to the nearest bfloat16, ties to even; a NaN stays one. Shapes: equal.
void to_bf16(std::span<const float> input, float scale, std::span<Bf16> output, const Team& team);

/// The number as a float: exact.
float from_bf16(Bf16 value);

}  // namespace droptest::models
