// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "models/kernels/chunks.h"
#include "models/kernels/exp_math.h"
#include "models/kernels/lanes.h"

namespace droptest::models {

template <class T>
void row_maxima(const LogitBlock& block, const Team& team) {
  const std::int64_t columns = block.range.count;
  for_vector_chunks(block.rows, chunk_items(block.rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    const T* logits = block.logits.as<T>().data();
    T* largest = block.largest.as<T>().data();
    for (std::int64_t i = begin; i < end; ++i) largest[i] = lane_max(logits + i * columns, columns);
  });
}

template <class T>
void exponential_sums(const LogitBlock& block, const Team& team) {
  for_vector_chunks(block.rows, chunk_items(block.rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    const TokenRange range = block.range;
    T* sums = block.sums.as<T>().data();
    T* predicted = block.predicted.as<T>().data();
    for (std::int64_t i = begin; i < end; ++i) {
      T* row = block.logits.as<T>().data() + i * range.count;
      const T top = block.largest.as<T>().data()[i];
      const std::int64_t target = block.targets.data[i] - range.first;
      predicted[i] = target >= 0 && target < range.count ? row[target] - top : T(0);
      for (std::int64_t j = 0; j < range.count; ++j) row[j] = exp_plain(row[j] - top);
      sums[i] = lane_sum<T>(range.count, [row](std::int64_t j) { return row[j]; });
    }
  });
}

template <class T>
void losses_of_sums(const LogitBlock& block) {
  const T* sums = block.sums.as<T>().data();
  const T* predicted = block.predicted.as<T>().data();
  for (std::int64_t i = 0; i < block.rows; ++i) {
    const bool ignored = block.targets.data[i] == kIgnoredTarget;
    block.losses.as<double>()[static_cast<std::size_t>(i)] =
        ignored ? 0.0 : std::log(static_cast<double>(sums[i])) - static_cast<double>(predicted[i]);
  }
}

template <class T>
void logits_to_gradient(const LogitBlock& block, const Team& team) {
  for_vector_chunks(block.rows, chunk_items(block.rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    const TokenRange range = block.range;
    for (std::int64_t i = begin; i < end; ++i) {
      T* row = block.logits.as<T>().data() + i * range.count;
      if (block.targets.data[i] == kIgnoredTarget) {
        std::fill_n(row, range.count, T(0));
        continue;
      }
      const T inverse = T(1) / block.sums.as<T>().data()[i];
      for (std::int64_t j = 0; j < range.count; ++j) row[j] *= inverse;
      const std::int64_t target = block.targets.data[i] - range.first;
      if (target >= 0 && target < range.count) row[target] -= T(1);
      for (std::int64_t j = 0; block.factor != 1 && j < range.count; ++j) row[j] *= static_cast<T>(block.factor);
    }
  });
}

template <class T>
void weigh_rows(const LogitBlock& block, std::span<const double> weights, const Team& team) {
  const std::int64_t columns = block.range.count;
  for_vector_chunks(block.rows, chunk_items(block.rows, 16), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t target = block.targets.data[i];
      if (target == kIgnoredTarget) continue;
      const double weight = weights[static_cast<std::size_t>(target)];
      block.losses.as<double>()[static_cast<std::size_t>(i)] *= weight;
      T* row = block.logits.as<T>().data() + i * columns;
      for (std::int64_t j = 0; j < columns; ++j) row[j] *= static_cast<T>(weight);
    }
  });
}

#define DROPTEST_CROSS_ENTROPY(T)                                      \
  template void row_maxima<T>(const LogitBlock&, const Team&);         \
  template void exponential_sums<T>(const LogitBlock&, const Team&);   \
  template void losses_of_sums<T>(const LogitBlock&);                  \
  template void logits_to_gradient<T>(const LogitBlock&, const Team&); \
  template void weigh_rows<T>(const LogitBlock&, std::span<const double>, const Team&);
DROPTEST_CROSS_ENTROPY(float)
DROPTEST_CROSS_ENTROPY(double)
#undef DROPTEST_CROSS_ENTROPY

}  // namespace droptest::models
