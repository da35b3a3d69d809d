// SPDX-License-Identifier: Apache-2.0
// 16-bit floats. bfloat16 is the upper half of a float. float16 has more fraction bits, but only a range from 2^-24 to
// 65504; loss scaling moves gradients into this range. GEMMs of 16-bit operands are faster; their sums stay float.
#pragma once

#include <span>

#include "comm/bfloat16.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "comm/float16.h"
#include "models/team.h"

namespace droptest::models {

using comm::Bf16;
using comm::Fp16;

/// Whether this processor multiplies bfloat16 (AVX512-BF16).
bool has_bf16_products();

/// output = scale x input, rounded to the nearest, ties to even. A NaN stays a NaN; float16 overflows to infinity from
/// 65520 on. Shapes: equal. N is Bf16 or Fp16.
template <class N>
void to_narrow(std::span<const float> input, float scale, std::span<N> output, const Team& team);

/// output = input. Shapes: equal.
template <class N>
void to_floats(std::span<const N> input, std::span<float> output, const Team& team);

/// output = input, rounded to the nearest if To has fewer bits. Shapes: equal. To and From are float, Bf16 or Fp16.
template <class To, class From>
void convert(comm::DeviceSpan<const From> input, comm::DeviceSpan<To> output, comm::Stream& stream);

}  // namespace droptest::models
