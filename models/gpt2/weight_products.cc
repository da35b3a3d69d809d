// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/weight_products.h"

#include <type_traits>

#include "models/gpt2/bf16_products.h"
#include "models/kernels/matmul.h"

namespace droptest::models {
namespace {

/// W as it lies in memory: the rows and columns that the layer uses.
template <class T>
Matrix<T> as_stored(T* data, const LinearShape& shape) {
  return shape.layout == WeightLayout::kInputsByOutputs ? dense(data, shape.inputs, shape.outputs)
                                                        : dense(data, shape.outputs, shape.inputs);
}
template <class T>
ConstMatrix<T> as_stored(const T* data, const LinearShape& shape) {
  return shape.layout == WeightLayout::kInputsByOutputs ? dense(data, shape.inputs, shape.outputs)
                                                        : dense(data, shape.outputs, shape.inputs);
}

Transpose transposed_if(bool yes) { return yes ? Transpose::kYes : Transpose::kNo; }

}  // namespace

template <class T>
void product(const Parameter<T>& weight, const LinearShape& shape, std::span<const T> input, Output mode,
             std::span<T> output, const Execution& execution) {
  const PhaseScope scope(execution.times, Phase::kProducts);
  const bool outputs_first = shape.layout == WeightLayout::kOutputsByInputs;
  const Matrix<T> y = dense(output.data(), shape.rows, shape.outputs);
  if constexpr (std::is_same_v<T, float>) {
    if (execution.bf16 != nullptr) {
      execution.bf16->matmul(Transpose::kNo, execution.bf16->input(input, shape.rows, shape.inputs, execution.team),
                             transposed_if(outputs_first), as_stored(weight.bf16_value.data(), shape),
                             mode == Output::kSet ? Bf16Matmul::Keep::kSet : Bf16Matmul::Keep::kAdd, y, execution.team);
      return;
    }
  }
  const T* value = weight.value.data();
  matmul<T>(Transpose::kNo, dense(input.data(), shape.rows, shape.inputs), transposed_if(outputs_first),
            as_stored(value, shape), T(1), mode == Output::kSet ? T(0) : T(1), y, execution.team);
}

template <class T>
void product_backward(const Parameter<T>& weight, const LinearShape& shape, std::span<const T> input,
                      std::span<const T> grad_output, T factor, GradientMode mode, std::span<T> grad_input,
                      const Execution& execution) {
  const PhaseScope scope(execution.times, Phase::kProducts);
  const bool outputs_first = shape.layout == WeightLayout::kOutputsByInputs;
  const Matrix<T> grad_w = as_stored(weight.gradient.data(), shape);
  const Matrix<T> grad_x = dense(grad_input.data(), shape.rows, shape.inputs);
  if constexpr (std::is_same_v<T, float>) {
    if (execution.bf16 != nullptr) {
      Bf16Products& bf16 = *execution.bf16;
      const ConstMatrix<Bf16> x = bf16.input(input, shape.rows, shape.inputs, execution.team);
      const ConstMatrix<Bf16> dy = bf16.grad_output(grad_output, factor, shape.rows, shape.outputs, execution.team);
      const auto keep = mode == GradientMode::kSet ? Bf16Matmul::Keep::kSet : Bf16Matmul::Keep::kAdd;
      bf16.matmul(Transpose::kYes, outputs_first ? dy : x, Transpose::kNo, outputs_first ? x : dy, keep, grad_w,
                  execution.team);
      bf16.matmul(Transpose::kNo, dy, transposed_if(!outputs_first), as_stored(weight.bf16_value.data(), shape),
                  Bf16Matmul::Keep::kSet, grad_x, execution.team);
      return;
    }
  }
  const ConstMatrix<T> x = dense(input.data(), shape.rows, shape.inputs);
  const ConstMatrix<T> dy = dense(grad_output.data(), shape.rows, shape.outputs);
  const T* value = weight.value.data();
  matmul<T>(Transpose::kYes, outputs_first ? dy : x, Transpose::kNo, outputs_first ? x : dy, factor,
            mode == GradientMode::kSet ? T(0) : T(1), grad_w, execution.team);
  matmul<T>(Transpose::kNo, dy, transposed_if(!outputs_first), as_stored(value, shape), factor, T(0), grad_x,
            execution.team);
}

template void product<float>(const Parameter<float>&, const LinearShape&, std::span<const float>, Output,
                             std::span<float>, const Execution&);
template void product<double>(const Parameter<double>&, const LinearShape&, std::span<const double>, Output,
                              std::span<double>, const Execution&);
template void product_backward<float>(const Parameter<float>&, const LinearShape&, std::span<const float>,
                                      std::span<const float>, float, GradientMode, std::span<float>, const Execution&);
template void product_backward<double>(const Parameter<double>&, const LinearShape&, std::span<const double>,
                                       std::span<const double>, double, GradientMode, std::span<double>,
                                       const Execution&);

}  // namespace droptest::models
