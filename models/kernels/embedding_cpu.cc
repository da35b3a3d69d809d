// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/embedding.h"

#include <algorithm>

#include "models/kernels/chunks.h"

namespace droptest::models {

template <class T>
void embedding_forward(std::span<const std::int32_t> tokens, TokenRange range, std::span<const T> table,
                       std::int64_t width, std::span<T> output, const Team& team) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  for_vector_chunks(rows, chunk_items(rows, 32), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = tokens[i] - range.first;
      T* y = output.data() + i * width;
      if (row >= 0 && row < range.count) {
        std::copy_n(table.data() + row * width, width, y);
      } else {
        std::fill_n(y, width, T(0));
      }
    }
  });
}

template <class T>
void embedding_backward(std::span<const std::int32_t> tokens, TokenRange range, std::span<const T> grad_output,
                        std::int64_t width, std::span<T> grad_table, const Team& team) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  // Columns are cut, not rows: two rows may name the same token.
  for_vector_chunks(width, chunk_columns(width), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t row = tokens[i] - range.first;
      if (row < 0 || row >= range.count) continue;
      const T* dy = grad_output.data() + i * width;
      T* dw = grad_table.data() + row * width;
      for (std::int64_t j = begin; j < end; ++j) dw[j] += dy[j];
    }
  });
}

template <class T>
void add_positions(std::span<const T> table, std::int64_t batch, std::int64_t length, std::int64_t width,
                   std::span<T> values, const Team& team) {
  const std::int64_t rows = batch * length;
  for_vector_chunks(rows, chunk_items(rows, 32), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T* position = table.data() + i % length * width;
      T* y = values.data() + i * width;
      for (std::int64_t j = 0; j < width; ++j) y[j] += position[j];
    }
  });
}

template <class T>
void positions_backward(std::span<const T> grad_values, std::int64_t batch, std::int64_t length, std::int64_t width,
                        std::span<T> grad_table, const Team& team) {
  for_vector_chunks(length, chunk_items(length, 16), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = 0; b < batch; ++b) {
      const T* dy = grad_values.data() + b * length * width;
      T* dw = grad_table.data();
      for (std::int64_t j = begin * width; j < end * width; ++j) dw[j] += dy[j];
    }
  });
}

#define DROPTEST_EMBEDDING(T)                                                                                      \
  template void embedding_forward<T>(std::span<const std::int32_t>, TokenRange, std::span<const T>, std::int64_t,  \
                                     std::span<T>, const Team&);                                                   \
  template void embedding_backward<T>(std::span<const std::int32_t>, TokenRange, std::span<const T>, std::int64_t, \
                                      std::span<T>, const Team&);                                                  \
  template void add_positions<T>(std::span<const T>, std::int64_t, std::int64_t, std::int64_t, std::span<T>,       \
                                 const Team&);                                                                     \
  template void positions_backward<T>(std::span<const T>, std::int64_t, std::int64_t, std::int64_t, std::span<T>,  \
                                      const Team&);
DROPTEST_EMBEDDING(float)
DROPTEST_EMBEDDING(double)
#undef DROPTEST_EMBEDDING

}  // namespace droptest::models
