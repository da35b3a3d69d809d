// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/residual.h"

#include <algorithm>

#include "models/kernels/chunks.h"

namespace droptest::models {

template <class T>
void fill_rows(std::span<const T> bias, std::int64_t rows, std::span<T> rows_out, const Team& team) {
  for_vector_chunks(rows, chunk_items(rows, 32), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) std::copy(bias.begin(), bias.end(), rows_out.data() + i * bias.size());
  });
}

template <class T>
void add_column_sums(std::span<const T> values, std::int64_t rows, std::span<T> sums, const Team& team) {
  const auto width = static_cast<std::int64_t>(sums.size());
  for_vector_chunks(width, chunk_columns(width), team, [&](std::int64_t begin, std::int64_t end) {
    T* s = sums.data();
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* v = values.data() + i * width;
      for (std::int64_t j = begin; j < end; ++j) s[j] += v[j];
    }
  });
}

#define DROPTEST_RESIDUAL(T)                                                               \
  template void fill_rows<T>(std::span<const T>, std::int64_t, std::span<T>, const Team&); \
  template void add_column_sums<T>(std::span<const T>, std::int64_t, std::span<T>, const Team&);
DROPTEST_RESIDUAL(float)
DROPTEST_RESIDUAL(double)
#undef DROPTEST_RESIDUAL

}  // namespace droptest::models
