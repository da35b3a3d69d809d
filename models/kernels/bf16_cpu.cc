// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/bf16.h"

#include <cstdint>

#include "models/kernels/chunks.h"

namespace droptest::models {

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
    for (std::int64_t i = begin; i < end; ++i) y[i] = comm::to_bf16(scale * x[i]);
  });
}

void to_floats(std::span<const Bf16> input, std::span<float> output, const Team& team) {
  const auto count = static_cast<std::int64_t>(input.size());
  const Bf16* x = input.data();
  float* y = output.data();
  for_vector_chunks(count, chunk_items(count, 16384), team, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = comm::to_float(x[i]);
  });
}

}  // namespace droptest::models
