// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper 16 bits of a float. GEMMs take it where it is multiplied faster; sums stay float.
#pragma once

#include <span>

#include "comm/bfloat16.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/team.h"

namespace droptest::models {

using comm::Bf16;

/// Whether this processor multiplies bfloat16 (AVX512-BF16).
bool has_bf16_products();

/// output = scale x input, rounded to the nearest bfloat16, ties to even; a NaN stays one. Shapes: equal.
void to_bf16(std::span<const float> input, float scale, std::span<Bf16> output, const Team& team);

/// output = input. Shapes: equal.
void to_floats(std::span<const Bf16> input, std::span<float> output, const Team& team);

/// output = input, rounded to the nearest where To has fewer bits. Shapes: equal. Each is float, Bf16 or Fp16.
template <class To, class From>
void convert(comm::DeviceSpan<const From> input, comm::DeviceSpan<To> output, comm::Stream& stream);

}  // namespace droptest::models
