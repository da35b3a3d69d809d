// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/matmul.h"

#include <dnnl.h>

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <string>

#include "models/kernels/chunks.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// One GEMM on the calling thread. False where the library refused.
bool product(bool transposed_a, const ConstMatrix<float>& a, bool transposed_b, const ConstMatrix<float>& b,
             float alpha, float beta, const Matrix<float>& result) {
  const std::int64_t inner = transposed_a ? a.rows : a.columns;
  return dnnl_sgemm(transposed_a ? 'T' : 'N', transposed_b ? 'T' : 'N', result.rows, result.columns, inner, alpha,
                    a.data, a.stride, b.data, b.stride, beta, result.data, result.stride) == dnnl_success;
}

bool product(bool transposed_a, const ConstMatrix<double>& a, bool transposed_b, const ConstMatrix<double>& b,
             double alpha, double beta, const Matrix<double>& result) {
  using Dense = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Stride = Eigen::OuterStride<>;
  const Eigen::Map<const Dense, 0, Stride> left(a.data, a.rows, a.columns, Stride(a.stride));
  const Eigen::Map<const Dense, 0, Stride> right(b.data, b.rows, b.columns, Stride(b.stride));
  Eigen::Map<Dense, 0, Stride> out(result.data, result.rows, result.columns, Stride(result.stride));
  if (beta == 0) {
    out.setZero();
  } else if (beta != 1) {
    out *= beta;
  }
  if (transposed_a && transposed_b) {
    out.noalias() += alpha * left.transpose() * right.transpose();
  } else if (transposed_a) {
    out.noalias() += alpha * left.transpose() * right;
  } else if (transposed_b) {
    out.noalias() += alpha * left * right.transpose();
  } else {
    out.noalias() += alpha * left * right;
  }
  return true;
}

template <class T>
void scale_only(T beta, const Matrix<T>& result) {
  for (std::int64_t i = 0; i < result.rows; ++i) {
    T* row = result.data + i * result.stride;
    for (std::int64_t j = 0; j < result.columns; ++j) row[j] = beta == T(0) ? T(0) : beta * row[j];
  }
}

}  // namespace

std::int64_t product_chunk(std::int64_t items) {
  // Narrow chunks spend their time packing the other operand; an even number of nearly equal ones keeps two threads
  // busy to the end.
  constexpr std::int64_t kGrain = 384;
  constexpr std::int64_t kMostPairs = 16;
  constexpr std::int64_t kVectorElems = 16;
  const std::int64_t pairs = std::clamp<std::int64_t>((items + kGrain) / (2 * kGrain), 1, kMostPairs);
  const std::int64_t even = (items + 2 * pairs - 1) / (2 * pairs);
  return std::max<std::int64_t>(4 * kVectorElems, (even + kVectorElems - 1) / kVectorElems * kVectorElems);
}

template <class T>
void matmul(Transpose transpose_a, const ConstMatrix<T>& a, Transpose transpose_b, const ConstMatrix<T>& b, T alpha,
            T beta, const Matrix<T>& result, const Team& team) {
  const bool ta = transpose_a == Transpose::kYes;
  const bool tb = transpose_b == Transpose::kYes;
  const std::int64_t m = ta ? a.columns : a.rows;
  const std::int64_t inner = ta ? a.rows : a.columns;
  const std::int64_t n = tb ? b.rows : b.columns;
  DROPTEST_CHECK(m == result.rows && n == result.columns && inner == (tb ? b.columns : b.rows),
                 "matmul: [" + std::to_string(m) + ", " + std::to_string(inner) + "] times [" +
                     std::to_string(tb ? b.columns : b.rows) + ", " + std::to_string(n) + "] into [" +
                     std::to_string(result.rows) + ", " + std::to_string(result.columns) + "]");
  if (m == 0 || n == 0) return;
  if (inner == 0) {
    scale_only(beta, result);
    return;
  }
  std::atomic<bool> ok = true;
  // The longer side of the result is cut: packing the other operand again for each chunk then costs least.
  if (m >= n) {
    for_chunks(m, product_chunk(m), team, [&](std::int64_t begin, std::int64_t end) {
      ConstMatrix<T> part_a = a;
      part_a.data += ta ? begin : begin * a.stride;
      (ta ? part_a.columns : part_a.rows) = end - begin;
      const Matrix<T> part{result.data + begin * result.stride, end - begin, n, result.stride};
      if (!product(ta, part_a, tb, b, alpha, beta, part)) ok = false;
    });
  } else {
    for_chunks(n, product_chunk(n), team, [&](std::int64_t begin, std::int64_t end) {
      ConstMatrix<T> part_b = b;
      part_b.data += tb ? begin * b.stride : begin;
      (tb ? part_b.rows : part_b.columns) = end - begin;
      const Matrix<T> part{result.data + begin, m, end - begin, result.stride};
      if (!product(ta, a, tb, part_b, alpha, beta, part)) ok = false;
    });
  }
  DROPTEST_CHECK(ok, "matmul: oneDNN refused [" + std::to_string(m) + ", " + std::to_string(inner) + "] x [" +
                         std::to_string(inner) + ", " + std::to_string(n) + "]");
}

template void matmul<float>(Transpose, const ConstMatrix<float>&, Transpose, const ConstMatrix<float>&, float, float,
                            const Matrix<float>&, const Team&);
template void matmul<double>(Transpose, const ConstMatrix<double>&, Transpose, const ConstMatrix<double>&, double,
                             double, const Matrix<double>&, const Team&);

}  // namespace droptest::models
