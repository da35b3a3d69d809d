// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/adamw.h"

#include <cmath>
#include <cstdint>

#include "models/kernels/chunks.h"

namespace droptest::models {

template <class T>
void adamw_update(std::span<T> value, std::span<const T> gradient, std::span<T> first_moment,
                  std::span<T> second_moment, const AdamWStep& step, const Team& team) {
  const auto count = static_cast<std::int64_t>(value.size());
  // Scalars are formed in double and rounded once.
  const auto scale = static_cast<T>(step.gradient_scale);
  const auto keep = static_cast<T>(1.0 - step.learning_rate * step.weight_decay);
  const auto beta1 = static_cast<T>(step.beta1);
  const auto beta2 = static_cast<T>(step.beta2);
  const auto new1 = static_cast<T>(1.0 - step.beta1);
  const auto new2 = static_cast<T>(1.0 - step.beta2);
  const auto rate = static_cast<T>(step.learning_rate / step.bias_correction1);
  const auto root = static_cast<T>(1.0 / std::sqrt(step.bias_correction2));
  const auto epsilon = static_cast<T>(step.epsilon);
  T* p = value.data();
  const T* g = gradient.data();
  T* m = first_moment.data();
  T* v = second_moment.data();
  for_vector_chunks(count, chunk_items(count, 16384), team, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T d = g[i] * scale;
      m[i] = beta1 * m[i] + new1 * d;
      v[i] = beta2 * v[i] + new2 * (d * d);
      p[i] = p[i] * keep - rate * (m[i] / (std::sqrt(v[i]) * root + epsilon));
    }
  });
}

template void adamw_update<float>(std::span<float>, std::span<const float>, std::span<float>, std::span<float>,
                                  const AdamWStep&, const Team&);
template void adamw_update<double>(std::span<double>, std::span<const double>, std::span<double>, std::span<double>,
                                   const AdamWStep&, const Team&);

}  // namespace droptest::models
