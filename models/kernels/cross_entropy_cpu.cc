// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/cross_entropy.h"

#include <algorithm>

#include "models/kernels/chunks.h"
#include "models/kernels/exp_math.h"
#include "models/kernels/lanes.h"

namespace droptest::models {

template <class T>
void row_maxima(std::span<const T> logits, std::int64_t columns, std::span<T> largest, const Team& team) {
  const auto rows = static_cast<std::int64_t>(largest.size());
  for_vector_chunks(rows, chunk_items(rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) largest[i] = lane_max(logits.data() + i * columns, columns);
  });
}

template <class T>
void exponentials(std::span<T> logits, TokenRange range, std::span<const std::int32_t> targets,
                  std::span<const T> largest, std::span<T> sums, std::span<T> predicted, const Team& team) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  for_vector_chunks(rows, chunk_items(rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* row = logits.data() + i * range.count;
      const T top = largest[i];
      const std::int64_t target = targets[i] - range.first;
      predicted[i] = target >= 0 && target < range.count ? row[target] - top : T(0);
      for (std::int64_t j = 0; j < range.count; ++j) row[j] = exp_plain(row[j] - top);
      sums[i] = lane_sum<T>(range.count, [row](std::int64_t j) { return row[j]; });
    }
  });
}

template <class T>
void exponentials_to_gradient(std::span<T> exponentials, TokenRange range, std::span<const std::int32_t> targets,
                              std::span<const T> sums, const Team& team) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  for_vector_chunks(rows, chunk_items(rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* row = exponentials.data() + i * range.count;
      if (targets[i] == kIgnoredTarget) {
        std::fill_n(row, range.count, T(0));
        continue;
      }
      const T inverse = T(1) / sums[i];
      for (std::int64_t j = 0; j < range.count; ++j) row[j] *= inverse;
      const std::int64_t target = targets[i] - range.first;
      if (target >= 0 && target < range.count) row[target] -= T(1);
    }
  });
}

template void row_maxima<float>(std::span<const float>, std::int64_t, std::span<float>, const Team&);
template void row_maxima<double>(std::span<const double>, std::int64_t, std::span<double>, const Team&);
template void exponentials<float>(std::span<float>, TokenRange, std::span<const std::int32_t>, std::span<const float>,
                                  std::span<float>, std::span<float>, const Team&);
template void exponentials<double>(std::span<double>, TokenRange, std::span<const std::int32_t>,
                                   std::span<const double>, std::span<double>, std::span<double>, const Team&);
template void exponentials_to_gradient<float>(std::span<float>, TokenRange, std::span<const std::int32_t>,
                                              std::span<const float>, const Team&);
template void exponentials_to_gradient<double>(std::span<double>, TokenRange, std::span<const std::int32_t>,
                                               std::span<const double>, const Team&);

}  // namespace droptest::models
