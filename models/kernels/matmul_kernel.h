// SPDX-License-Identifier: Apache-2.0
// The interface of implementations of the host's GEMMs that a spec can choose by name. Smallest example:
// matmul_reference_cpu.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "models/kernels/chunks.h"
#include "models/kernels/matmul.h"
#include "models/team.h"
#include "sim/error.h"

namespace droptest::models {

/// The arguments of a GEMM: result = alpha op(a) op(b) + beta result, as in matmul().
template <class T>
struct Product {
  Transpose transpose_a = Transpose::kNo;
  ConstMatrix<T> a;
  Transpose transpose_b = Transpose::kNo;
  ConstMatrix<T> b;
  T alpha = 1;
  T beta = 0;
  Matrix<T> result;

  /// The number of columns of op(a), which is the number of rows of op(b).
  std::int64_t inner() const { return transpose_a == Transpose::kYes ? a.rows : a.columns; }
};

/// Thread safety: used by one rank. Determinism: bits depend on shapes and values, not on the team.
class MatmulKernel {
 public:
  virtual ~MatmulKernel() = default;
  virtual void multiply(const Product<float>& product, const Team& team) const = 0;
  virtual void multiply(const Product<double>& product, const Team& team) const = 0;
  /// Whether bfloat16 operands are multiplied directly if the processor supports it (matmul_bf16.h). Otherwise they are
  /// converted to float first.
  virtual bool multiplies_bf16() const { return false; }
};

/// The matmul() of matmul.h (float by oneDNN, double by Eigen), and the same by Eigen for both types.
std::unique_ptr<MatmulKernel> make_onednn_matmul();
std::unique_ptr<MatmulKernel> make_eigen_matmul();
/// A loop for each element of the result. Sums are double and in the order of the inner index.
std::unique_ptr<MatmulKernel> make_reference_matmul();

/// Calls multiply_part(product) for parts of the result, on the threads of the team; the parts cover the result and
/// depend only on its shape. An empty result calls nothing. If the inner extent is 0, this function scales the result
/// itself. multiply_part must not throw.
template <class T, class MultiplyPart>
void for_parts_of_product(const Product<T>& p, const Team& team, const MultiplyPart& multiply_part) {
  const bool ta = p.transpose_a == Transpose::kYes;
  const bool tb = p.transpose_b == Transpose::kYes;
  const std::int64_t m = ta ? p.a.columns : p.a.rows;
  const std::int64_t n = tb ? p.b.rows : p.b.columns;
  const std::int64_t b_inner = tb ? p.b.columns : p.b.rows;
  DROPTEST_CHECK(m == p.result.rows && n == p.result.columns && p.inner() == b_inner,
                 "matmul: [" + std::to_string(m) + ", " + std::to_string(p.inner()) + "] times [" +
                     std::to_string(b_inner) + ", " + std::to_string(n) + "] into [" + std::to_string(p.result.rows) +
                     ", " + std::to_string(p.result.columns) + "]");
  if (m == 0 || n == 0) return;
  if (p.inner() == 0) {
    for (std::int64_t i = 0; i < m; ++i) {
      T* const row = p.result.data + i * p.result.stride;
      for (std::int64_t j = 0; j < n; ++j) row[j] = p.beta == T(0) ? T(0) : p.beta * row[j];
    }
    return;
  }
  // The longer side of the result is cut, because each chunk packs the other operand again.
  if (m >= n) {
    for_chunks(m, product_chunk(m), team, [&](std::int64_t begin, std::int64_t end) {
      Product<T> part = p;
      part.a.data += ta ? begin : begin * p.a.stride;
      (ta ? part.a.columns : part.a.rows) = end - begin;
      part.result = {p.result.data + begin * p.result.stride, end - begin, n, p.result.stride};
      multiply_part(part);
    });
  } else {
    for_chunks(n, product_chunk(n), team, [&](std::int64_t begin, std::int64_t end) {
      Product<T> part = p;
      part.b.data += tb ? begin * p.b.stride : begin;
      (tb ? part.b.rows : part.b.columns) = end - begin;
      part.result = {p.result.data + begin, m, end - begin, p.result.stride};
      multiply_part(part);
    });
  }
}

}  // namespace droptest::models
