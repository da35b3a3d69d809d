// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of a float.
#pragma once

#include <bit>
#include <cstdint>

namespace droptest::comm {

/// One bfloat16 number, as its bits.
struct Bf16 {
  std::uint16_t bits;
};

/// The number as a float: exact.
constexpr float to_float(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U); }

/// The nearest bfloat16, ties to even; a NaN stays a NaN.
constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nearest = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<std::uint16_t>(is_nan ? 0x7FC0U : nearest)};
}

}  // namespace droptest::comm
