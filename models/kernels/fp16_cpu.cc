// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/fp16.h"

#include <cstdint>

#include "models/kernels/chunks.h"

namespace droptest::models {

void to_fp16(std::span<const float> input, float scale, std::span<Fp16> output, const Team& team) {
  const auto count = static_cast<std::int64_t>(input.size());
  const float* x = input.data();
  Fp16* y = output.data();
  for_vector_chunks(count, chunk_items(count, 16384), team, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = comm::to_fp16(scale * x[i]);
  });
}

void to_floats(std::span<const Fp16> input, std::span<float> output, const Team& team) {
  const auto count = static_cast<std::int64_t>(input.size());
  const Fp16* x = input.data();
  float* y = output.data();
  for_vector_chunks(count, chunk_items(count, 16384), team, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = comm::to_float(x[i]);
  });
}

}  // namespace droptest::models
