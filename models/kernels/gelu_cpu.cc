// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/gelu.h"

#include <cstdint>

#include "models/kernels/chunks.h"
#include "models/kernels/exp_math.h"

namespace droptest::models {
namespace {

constexpr double kTwiceSqrtTwoOverPi = 1.5957691216057307117;
constexpr double kCubic = 0.044715;

/// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)): no cancellation for negative u, and one exponential.
template <class T>
T gate(T x) {
  const T twice_u = static_cast<T>(kTwiceSqrtTwoOverPi) * (x + static_cast<T>(kCubic) * x * x * x);
  return T(1) / (T(1) + exp_plain(-twice_u));
}

}  // namespace

template <class T>
void gelu_forward(std::span<const T> input, std::span<T> output, int threads) {
  const auto count = static_cast<std::int64_t>(input.size());
  const T* x = input.data();
  T* y = output.data();
  for_chunks(count, chunk_items(count, 4096), threads, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] * gate(x[i]);
  });
}

template <class T>
void gelu_backward(std::span<const T> input, std::span<T> gradient, int threads) {
  const auto count = static_cast<std::int64_t>(input.size());
  const T* x = input.data();
  T* dy = gradient.data();
  for_chunks(count, chunk_items(count, 4096), threads, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      // d(x s(2u)) = s + x s (1 - s) d(2u)/dx.
      const T s = gate(x[i]);
      const T slope = static_cast<T>(kTwiceSqrtTwoOverPi) * (T(1) + T(3) * static_cast<T>(kCubic) * x[i] * x[i]);
      dy[i] *= s + x[i] * s * (T(1) - s) * slope;
    }
  });
}

template void gelu_forward<float>(std::span<const float>, std::span<float>, int);
template void gelu_forward<double>(std::span<const double>, std::span<double>, int);
template void gelu_backward<float>(std::span<const float>, std::span<float>, int);
template void gelu_backward<double>(std::span<const double>, std::span<double>, int);

}  // namespace droptest::models
