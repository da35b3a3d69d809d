// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/sgd.h"

#include <cstdint>

#include "models/kernels/chunks.h"

namespace droptest::models {

template <class T>
void sgd_update(std::span<T> value, std::span<const T> gradient, std::span<T> velocity, const SgdStep& step,
                const Team& team) {
  const auto count = static_cast<std::int64_t>(value.size());
  const auto rate = static_cast<T>(step.learning_rate);
  const auto scale = static_cast<T>(step.gradient_scale);
  const auto momentum = static_cast<T>(step.momentum);
  const auto decay = static_cast<T>(step.weight_decay);
  T* p = value.data();
  const T* g = gradient.data();
  T* v = velocity.data();
  for_vector_chunks(count, chunk_items(count, 16384), team, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      v[i] = momentum * v[i] + (g[i] * scale + decay * p[i]);
      p[i] -= rate * v[i];
    }
  });
}

template void sgd_update<float>(std::span<float>, std::span<const float>, std::span<float>, const SgdStep&,
                                const Team&);
template void sgd_update<double>(std::span<double>, std::span<const double>, std::span<double>, const SgdStep&,
                                 const Team&);

}  // namespace droptest::models
