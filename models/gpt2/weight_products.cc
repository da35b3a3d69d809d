// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/weight_products.h"

#include <utility>

#include "models/kernels/matmul.h"

namespace droptest::models {
namespace {

template <class T>
ConstMatrix<T> weight_matrix(const Parameter<T>& weight) {
  return dense<T>(std::span<const T>(weight.value).data(), static_cast<std::int64_t>(weight.shape[0]),
                  static_cast<std::int64_t>(weight.shape[1]));
}

template <class T>
void forward(const Parameter<T>& weight, std::span<const T> input, std::int64_t rows, T keep, std::span<T> output,
             const Execution& execution) {
  const ConstMatrix<T> w = weight_matrix(weight);
  matmul<T>(Transpose::kNo, dense(input.data(), rows, w.rows), Transpose::kNo, w, T(1), keep,
            dense(output.data(), rows, w.columns), execution.threads);
}

}  // namespace

template <class T>
void product(const Parameter<T>& weight, std::span<const T> input, std::int64_t rows, std::span<T> output,
             const Execution& execution) {
  forward(weight, input, rows, T(0), output, execution);
}

template <class T>
void add_product(const Parameter<T>& weight, std::span<const T> input, std::int64_t rows, std::span<T> output,
                 const Execution& execution) {
  forward(weight, input, rows, T(1), output, execution);
}

template <class T>
void product_backward(const Parameter<T>& weight, std::span<const T> input, std::span<const T> grad_output,
                      std::int64_t rows, std::span<T> grad_input, const Execution& execution) {
  const ConstMatrix<T> w = weight_matrix(weight);
  const ConstMatrix<T> dy = dense(grad_output.data(), rows, w.columns);
  matmul<T>(Transpose::kYes, dense(input.data(), rows, w.rows), Transpose::kNo, dy, T(1),
            execution.gradient_mode == GradientMode::kSet ? T(0) : T(1),
            dense(weight.gradient.data(), w.rows, w.columns), execution.threads);
  matmul<T>(Transpose::kNo, dy, Transpose::kYes, w, T(1), T(0), dense(grad_input.data(), rows, w.rows),
            execution.threads);
}

template void product<float>(const Parameter<float>&, std::span<const float>, std::int64_t, std::span<float>,
                             const Execution&);
template void product<double>(const Parameter<double>&, std::span<const double>, std::int64_t, std::span<double>,
                              const Execution&);
template void add_product<float>(const Parameter<float>&, std::span<const float>, std::int64_t, std::span<float>,
                                 const Execution&);
template void add_product<double>(const Parameter<double>&, std::span<const double>, std::int64_t, std::span<double>,
                                  const Execution&);
template void product_backward<float>(const Parameter<float>&, std::span<const float>, std::span<const float>,
                                      std::int64_t, std::span<float>, const Execution&);
template void product_backward<double>(const Parameter<double>&, std::span<const double>, std::span<const double>,
                                       std::int64_t, std::span<double>, const Execution&);

}  // namespace droptest::models
