// SPDX-License-Identifier: Apache-2.0
// float16: more fraction bits than bfloat16, but a range from 2^-24 to 65504. Loss scaling keeps gradients in it.
#pragma once

#include <span>

#include "comm/float16.h"
#include "models/team.h"

namespace droptest::models {

using comm::Fp16;

/// output = scale x input, rounded to the nearest float16, ties to even; from 65520 on infinity; a NaN stays one.
/// Shapes: equal.
void to_fp16(std::span<const float> input, float scale, std::span<Fp16> output, const Team& team);

/// output = input. Shapes: equal.
void to_floats(std::span<const Fp16> input, std::span<float> output, const Team& team);

}  // namespace droptest::models
