// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/bf16.h"

#include <bit>

#include "models/kernels/chunks.h"

namespace droptest::models {
namespace {

constexpr std::uint32_t kQuietNan = 0x7FC0;
constexpr std::uint32_t kInfinityBits = 0x7F800000;

std::uint16_t rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nearest = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > kInfinityBits;
  return static_cast<std::uint16_t>(is_nan ? kQuietNan : nearest);
}

}  // namespace

bool has_bf16_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

void to_bf16(std::span<const float> input, float scale, std::span<Bf16> output, const Team& team) {
  const auto count = static_cast<std::int64_t>(input.size());
  const float* x = input.data();
  Bf16* y = output.data();
  for_vector_chunks(count, chunk_items(count, 16384), team, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i].bits = rounded(scale * x[i]);
  });
}

float from_bf16(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U); }

}  // namespace droptest::models
