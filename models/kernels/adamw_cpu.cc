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
  const AdamWScalars<T> s(step);
  T* p = value.data();
  const T* g = gradient.data();
  T* m = first_moment.data();
  T* v = second_moment.data();
  for_vector_chunks(count, chunk_items(count, 16384), team, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T d = g[i] * s.scale;
      m[i] = s.beta1 * m[i] + s.new1 * d;
      v[i] = s.beta2 * v[i] + s.new2 * (d * d);
      p[i] = p[i] * s.keep - s.rate * (m[i] / (std::sqrt(v[i]) * s.root + s.epsilon));
    }
  });
}

template void adamw_update<float>(std::span<float>, std::span<const float>, std::span<float>, std::span<float>,
                                  const AdamWStep&, const Team&);
template void adamw_update<double>(std::span<double>, std::span<const double>, std::span<double>, std::span<double>,
                                   const AdamWStep&, const Team&);

}  // namespace droptest::models
