// SPDX-License-Identifier: Apache-2.0
// A GEMM in the order of its formula.
#include "models/kernels/matmul_kernel.h"

namespace droptest::models {
namespace {

template <class T>
double element(Transpose transpose, const ConstMatrix<T>& matrix, std::int64_t row, std::int64_t column) {
  return static_cast<double>(transpose == Transpose::kYes ? matrix.data[column * matrix.stride + row]
                                                          : matrix.data[row * matrix.stride + column]);
}

template <class T>
void multiply_in_order(const Product<T>& p) {
  const std::int64_t inner = p.inner();
  for (std::int64_t i = 0; i < p.result.rows; ++i) {
    T* const row = p.result.data + i * p.result.stride;
    for (std::int64_t j = 0; j < p.result.columns; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < inner; ++k) {
        sum += element(p.transpose_a, p.a, i, k) * element(p.transpose_b, p.b, k, j);
      }
      const double old = p.beta == T(0) ? 0 : static_cast<double>(p.beta) * static_cast<double>(row[j]);
      row[j] = static_cast<T>(static_cast<double>(p.alpha) * sum + old);
    }
  }
}

class ReferenceMatmul final : public MatmulKernel {
 public:
  void multiply(const Product<float>& product, const Team& team) const override {
    for_parts_of_product(product, team, multiply_in_order<float>);
  }
  void multiply(const Product<double>& product, const Team& team) const override {
    for_parts_of_product(product, team, multiply_in_order<double>);
  }
};

}  // namespace

std::unique_ptr<MatmulKernel> make_reference_matmul() { return std::make_unique<ReferenceMatmul>(); }

}  // namespace droptest::models
