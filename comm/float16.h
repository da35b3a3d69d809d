// SPDX-License-Identifier: Apache-2.0
// float16: IEEE 754's binary16.
#pragma once

#include <bit>
#include <cstdint>

namespace droptest::comm {

/// One float16 number, as its bits: a sign, 5 bits of exponent, 10 of fraction.
struct Fp16 {
  std::uint16_t bits;
};

/// The number as a float: exact.
constexpr float to_float(Fp16 value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t magnitude = value.bits & 0x7FFFU;
  if (magnitude < 0x400U) {  // zero, or a multiple of 2^-24 below the smallest normal number
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F) | sign);
  }
  const std::uint32_t exponent_shift = magnitude < 0x7C00U ? 112U : 224U;  // infinities and NaNs stay at the top
  return std::bit_cast<float>(((magnitude << 13U) + (exponent_shift << 23U)) | sign);
}

/// The nearest float16, ties to even; from 65520 on infinity; a NaN stays a NaN.
constexpr Fp16 to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t nearest = 0;
  if (magnitude > 0x7F800000U) {
    nearest = 0x7E00U;
  } else if (magnitude >= 0x477FF000U) {
    nearest = 0x7C00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14: floats next to one half are multiples of 2^-24
    nearest = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  } else {
    nearest = ((magnitude + 0xFFFU + ((magnitude >> 13U) & 1U)) >> 13U) - (112U << 10U);
  }
  return {static_cast<std::uint16_t>(sign | nearest)};
}

}  // namespace droptest::comm
