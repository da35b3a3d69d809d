// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/matmul.h"

#include <dnnl.h>

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <string>

#include "models/kernels/matmul_kernel.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// One GEMM on the calling thread. Returns false if the library refused it.
bool multiply_by_onednn(const Product<float>& p) {
  return dnnl_sgemm(p.transpose_a == Transpose::kYes ? 'T' : 'N', p.transpose_b == Transpose::kYes ? 'T' : 'N',
                    p.result.rows, p.result.columns, p.inner(), p.alpha, p.a.data, p.a.stride, p.b.data, p.b.stride,
                    p.beta, p.result.data, p.result.stride) == dnnl_success;
}

template <class T>
void multiply_by_eigen(const Product<T>& p) {
  using Dense = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Stride = Eigen::OuterStride<>;
  const bool transposed_a = p.transpose_a == Transpose::kYes;
  const bool transposed_b = p.transpose_b == Transpose::kYes;
  const Eigen::Map<const Dense, 0, Stride> left(p.a.data, p.a.rows, p.a.columns, Stride(p.a.stride));
  const Eigen::Map<const Dense, 0, Stride> right(p.b.data, p.b.rows, p.b.columns, Stride(p.b.stride));
  Eigen::Map<Dense, 0, Stride> out(p.result.data, p.result.rows, p.result.columns, Stride(p.result.stride));
  if (p.beta == T(0)) {
    out.setZero();
  } else if (p.beta != T(1)) {
    out *= p.beta;
  }
  if (transposed_a && transposed_b) {
    out.noalias() += p.alpha * left.transpose() * right.transpose();
  } else if (transposed_a) {
    out.noalias() += p.alpha * left.transpose() * right;
  } else if (transposed_b) {
    out.noalias() += p.alpha * left * right.transpose();
  } else {
    out.noalias() += p.alpha * left * right;
  }
}

template <class T>
void eigen_product(const Product<T>& p, const Team& team) {
  for_parts_of_product(p, team, [](const Product<T>& part) { multiply_by_eigen(part); });
}

void usual_product(const Product<float>& p, const Team& team) {
  std::atomic<bool> ok = true;
  for_parts_of_product(p, team, [&ok](const Product<float>& part) {
    if (!multiply_by_onednn(part)) ok = false;
  });
  DROPTEST_CHECK(ok, "matmul: oneDNN refused [" + std::to_string(p.result.rows) + ", " + std::to_string(p.inner()) +
                         "] x [" + std::to_string(p.inner()) + ", " + std::to_string(p.result.columns) + "]");
}

void usual_product(const Product<double>& p, const Team& team) { eigen_product(p, team); }

class OnednnMatmul final : public MatmulKernel {
 public:
  void multiply(const Product<float>& product, const Team& team) const override { usual_product(product, team); }
  void multiply(const Product<double>& product, const Team& team) const override { usual_product(product, team); }
  bool multiplies_bf16() const override { return true; }
};

class EigenMatmul final : public MatmulKernel {
 public:
  void multiply(const Product<float>& product, const Team& team) const override { eigen_product(product, team); }
  void multiply(const Product<double>& product, const Team& team) const override { eigen_product(product, team); }
};

}  // namespace

std::int64_t product_chunk(std::int64_t items) {
  // Narrow chunks spend most time packing the other operand. An even number of nearly equal chunks occupies two threads
  // to the end.
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
  usual_product(Product<T>{transpose_a, a, transpose_b, b, alpha, beta, result}, team);
}

template void matmul<float>(Transpose, const ConstMatrix<float>&, Transpose, const ConstMatrix<float>&, float, float,
                            const Matrix<float>&, const Team&);
template void matmul<double>(Transpose, const ConstMatrix<double>&, Transpose, const ConstMatrix<double>&, double,
                             double, const Matrix<double>&, const Team&);

std::unique_ptr<MatmulKernel> make_onednn_matmul() { return std::make_unique<OnednnMatmul>(); }
std::unique_ptr<MatmulKernel> make_eigen_matmul() { return std::make_unique<EigenMatmul>(); }

}  // namespace droptest::models
