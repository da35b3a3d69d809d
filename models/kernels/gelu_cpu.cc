// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/gelu.h"

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

enum class Derivatives : std::uint8_t { kKeep, kNone };

/// Let x = values + bias. With derivatives: output = gelu(x), and the values become the derivatives. Without: the
/// values become gelu(x).
template <class T, Derivatives kDerivatives>
void gelu_rows(std::span<const T> bias, std::int64_t rows, std::span<T> values, std::span<T> output, const Team& team) {
  const auto width = static_cast<std::int64_t>(bias.size());
  for_vector_chunks(rows, chunk_items(rows, 8), team, [&](std::int64_t begin, std::int64_t end) {
    const T* b = bias.data();
    for (std::int64_t i = begin; i < end; ++i) {
      T* v = values.data() + i * width;
      T* y = kDerivatives == Derivatives::kKeep ? output.data() + i * width : v;
      for (std::int64_t j = 0; j < width; ++j) {
        const T x = v[j] + b[j];
        const T s = gate(x);
        y[j] = x * s;
        if constexpr (kDerivatives == Derivatives::kKeep) {
          // d(x s(2u)) = s + x s (1 - s) d(2u)/dx.
          const T derivative = static_cast<T>(kTwiceSqrtTwoOverPi) * (T(1) + T(3) * static_cast<T>(kCubic) * x * x);
          v[j] = s + x * s * (T(1) - s) * derivative;
        }
      }
    }
  });
}

}  // namespace

template <class T>
void bias_gelu_forward(std::span<const T> bias, std::int64_t rows, std::span<T> values, std::span<T> output,
                       const Team& team) {
  gelu_rows<T, Derivatives::kKeep>(bias, rows, values, output, team);
}

template <class T>
void bias_gelu(std::span<const T> bias, std::int64_t rows, std::span<T> values, const Team& team) {
  gelu_rows<T, Derivatives::kNone>(bias, rows, values, {}, team);
}

template <class T>
void bias_gelu_backward(std::span<const T> derivatives, std::int64_t rows, std::span<T> gradient,
                        std::span<T> bias_gradient, const Team& team) {
  const auto width = static_cast<std::int64_t>(bias_gradient.size());
  // Columns are cut, so that each sum runs over all rows in order.
  for_vector_chunks(width, chunk_columns(width), team, [&](std::int64_t begin, std::int64_t end) {
    T* db = bias_gradient.data();
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* s = derivatives.data() + i * width;
      T* g = gradient.data() + i * width;
      for (std::int64_t j = begin; j < end; ++j) {
        g[j] *= s[j];
        db[j] += g[j];
      }
    }
  });
}

#define DROPTEST_GELU(T)                                                                                         \
  template void bias_gelu_forward<T>(std::span<const T>, std::int64_t, std::span<T>, std::span<T>, const Team&); \
  template void bias_gelu<T>(std::span<const T>, std::int64_t, std::span<T>, const Team&);                       \
  template void bias_gelu_backward<T>(std::span<const T>, std::int64_t, std::span<T>, std::span<T>, const Team&);
DROPTEST_GELU(float)
DROPTEST_GELU(double)
#undef DROPTEST_GELU

}  // namespace droptest::models
