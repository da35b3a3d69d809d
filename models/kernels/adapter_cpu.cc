// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "models/kernels/adapter.h"
#include "models/kernels/chunks.h"

namespace droptest::models {
namespace {

/// The transpose of a matrix [rows, columns].
template <class T>
std::vector<T> transposed(std::span<const T> matrix, std::int64_t rows, std::int64_t columns) {
  std::vector<T> result(matrix.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      result[static_cast<std::size_t>(c * rows + r)] = matrix[static_cast<std::size_t>(r * columns + c)];
    }
  }
  return result;
}

}  // namespace

template <class T>
void merge_adapter(const AdapterShape& s, std::span<const T> weight, std::span<const T> a, std::span<const T> b,
                   std::span<T> merged, const Team& team) {
  const std::vector<T> b_of_rank = transposed(b, s.outputs, s.rank);
  for_vector_chunks(s.inputs, chunk_items(s.inputs, 4), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T* const row = merged.data() + i * s.outputs;
      std::copy_n(weight.data() + i * s.outputs, s.outputs, row);
      for (std::int64_t k = 0; k < s.rank; ++k) {
        const T factor = static_cast<T>(s.scale) * a[static_cast<std::size_t>(k * s.inputs + i)];
        const T* const of_rank = b_of_rank.data() + k * s.outputs;
        for (std::int64_t o = 0; o < s.outputs; ++o) row[o] += factor * of_rank[o];
      }
    }
  });
}

template <class T>
void adapter_gradients(const AdapterShape& s, std::span<const T> grad_merged, std::span<const T> a,
                       std::span<const T> b, std::span<T> grad_a, std::span<T> grad_b, const Team& team) {
  const std::vector<T> b_of_rank = transposed(b, s.outputs, s.rank);
  const T scale = static_cast<T>(s.scale);
  for_vector_chunks(s.inputs, chunk_items(s.inputs, 4), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T* const row = grad_merged.data() + i * s.outputs;
      for (std::int64_t k = 0; k < s.rank; ++k) {
        const T* const of_rank = b_of_rank.data() + k * s.outputs;
        T sum = 0;
        for (std::int64_t o = 0; o < s.outputs; ++o) sum += row[o] * of_rank[o];
        grad_a[static_cast<std::size_t>(k * s.inputs + i)] = scale * sum;
      }
    }
  });
  // The transposed gradient of B, [rank, outputs]. A chunk of the loop computes some of its columns.
  std::vector<T> grad_of_rank(grad_b.size());
  for_vector_chunks(s.outputs, chunk_items(s.outputs, 64), team, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < s.inputs; ++i) {
      const T* const row = grad_merged.data() + i * s.outputs;
      for (std::int64_t k = 0; k < s.rank; ++k) {
        const T factor = a[static_cast<std::size_t>(k * s.inputs + i)];
        T* const sums = grad_of_rank.data() + k * s.outputs;
        for (std::int64_t o = begin; o < end; ++o) sums[o] += factor * row[o];
      }
    }
  });
  for (std::int64_t o = 0; o < s.outputs; ++o) {
    for (std::int64_t k = 0; k < s.rank; ++k) {
      grad_b[static_cast<std::size_t>(o * s.rank + k)] =
          scale * grad_of_rank[static_cast<std::size_t>(k * s.outputs + o)];
    }
  }
}

#define DROPTEST_ADAPTER(T)                                                                                           \
  template void merge_adapter<T>(const AdapterShape&, std::span<const T>, std::span<const T>, std::span<const T>,     \
                                 std::span<T>, const Team&);                                                          \
  template void adapter_gradients<T>(const AdapterShape&, std::span<const T>, std::span<const T>, std::span<const T>, \
                                     std::span<T>, std::span<T>, const Team&);
DROPTEST_ADAPTER(float)
DROPTEST_ADAPTER(double)
#undef DROPTEST_ADAPTER

}  // namespace droptest::models
