// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/narrow_floats.h"

#include <cstdint>
#include <type_traits>

#include "models/kernels/chunks.h"

namespace droptest::models {
namespace {

constexpr std::int64_t kGrain = 16384;

}  // namespace

bool has_bf16_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

template <class N>
void to_narrow(std::span<const float> input, float scale, std::span<N> output, const Team& team) {
  const auto count = static_cast<std::int64_t>(input.size());
  const float* x = input.data();
  N* y = output.data();
  for_vector_chunks(count, chunk_items(count, kGrain), team, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if constexpr (std::is_same_v<N, Bf16>) {
        y[i] = comm::to_bf16(scale * x[i]);
      } else {
        y[i] = comm::to_fp16(scale * x[i]);
      }
    }
  });
}

template <class N>
void to_floats(std::span<const N> input, std::span<float> output, const Team& team) {
  const auto count = static_cast<std::int64_t>(input.size());
  const N* x = input.data();
  float* y = output.data();
  for_vector_chunks(count, chunk_items(count, kGrain), team, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = comm::to_float(x[i]);
  });
}

template void to_narrow(std::span<const float>, float, std::span<Bf16>, const Team&);
template void to_narrow(std::span<const float>, float, std::span<Fp16>, const Team&);
template void to_floats(std::span<const Bf16>, std::span<float>, const Team&);
template void to_floats(std::span<const Fp16>, std::span<float>, const Team&);

}  // namespace droptest::models
