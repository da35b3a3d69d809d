// SPDX-License-Identifier: Apache-2.0
// GEMMs over row-major matrices with leading dimensions.
#pragma once

#include <cstdint>

#include "models/team.h"

namespace droptest::models {

enum class Transpose : std::uint8_t { kNo, kYes };

/// A borrowed row-major matrix with `stride` elements, at least `columns`, from one row to the next.
template <class T>
struct ConstMatrix {
  const T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

template <class T>
struct Matrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

/// A matrix without gaps between its rows.
template <class T>
ConstMatrix<T> dense(const T* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns};
}
template <class T>
Matrix<T> dense(T* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns};
}

/// The number of rows (or columns) that one thread computes at a time, if the result has `items` of them.
std::int64_t product_chunk(std::int64_t items);

/// result = alpha op(a) op(b) + beta result; if beta = 0, the old result is not read. oneDNN computes float, Eigen
/// double. Shapes: op(a) [m, k], op(b) [k, n], result [m, n]; any may be zero. Determinism: bits depend on shapes and
/// values, not on the team. Call it under SingleThreadedLibraries (models/kernels/chunks.h). Throws: CheckError if the
/// shapes do not fit together.
template <class T>
void matmul(Transpose transpose_a, const ConstMatrix<T>& a, Transpose transpose_b, const ConstMatrix<T>& b, T alpha,
            T beta, const Matrix<T>& result, const Team& team);

}  // namespace droptest::models
