// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parallel_linear.h"

#include "models/kernels/matmul.h"
#include "models/kernels/residual.h"

namespace droptest::models {
namespace {

/// "h.3.attn.c_proj" of "h.3.attn.c_proj.weight".
std::string layer_name(const std::string& weight_name) { return weight_name.substr(0, weight_name.rfind('.')); }

template <class T>
void linear_backward(const Parameter<T>& weight, const Parameter<T>& bias, std::span<const T> input,
                     std::span<const T> grad_output, std::int64_t rows, std::span<T> grad_input, int threads) {
  const auto inputs = static_cast<std::int64_t>(weight.shape[0]);
  const auto outputs = static_cast<std::int64_t>(weight.shape[1]);
  matmul<T>(Transpose::kYes, dense(input.data(), rows, inputs), Transpose::kNo,
            dense(grad_output.data(), rows, outputs), T(1), T(1), dense(weight.gradient.data(), inputs, outputs),
            threads);
  add_column_sums<T>(grad_output.first(static_cast<std::size_t>(rows * outputs)), rows, bias.gradient, threads);
  matmul<T>(Transpose::kNo, dense(grad_output.data(), rows, outputs), Transpose::kYes,
            dense<T>(std::span<const T>(weight.value).data(), inputs, outputs), T(1), T(0),
            dense(grad_input.data(), rows, inputs), threads);
}

}  // namespace

template <class T>
ColumnParallelLinear<T>::ColumnParallelLinear(Parameter<T>& weight, Parameter<T>& bias, const Execution& execution,
                                              int layer)
    : weight_(weight),
      bias_(bias),
      execution_(execution),
      layer_(layer),
      backward_name_(layer_name(weight.name) + ".backward") {}

template <class T>
void ColumnParallelLinear<T>::forward(std::span<const T> input, std::int64_t rows, std::span<T> output) const {
  const auto inputs = static_cast<std::int64_t>(weight_.shape[0]);
  const auto outputs = static_cast<std::int64_t>(weight_.shape[1]);
  fill_rows<T>(bias_.value, rows, output, execution_.threads);
  matmul<T>(Transpose::kNo, dense(input.data(), rows, inputs), Transpose::kNo,
            dense<T>(std::span<const T>(weight_.value).data(), inputs, outputs), T(1), T(1),
            dense(output.data(), rows, outputs), execution_.threads);
}

template <class T>
void ColumnParallelLinear<T>::backward(std::span<const T> input, std::span<const T> grad_output, std::int64_t rows,
                                       std::span<T> grad_input) const {
  linear_backward(weight_, bias_, input, grad_output, rows, grad_input, execution_.threads);
  execution_.tensor_group.all_reduce(grad_input.first(static_cast<std::size_t>(rows) * weight_.shape[0]),
                                     comm::ReduceOp::kSum, {sim::TrafficClass::kTpBackward, backward_name_, layer_});
}

template <class T>
RowParallelLinear<T>::RowParallelLinear(Parameter<T>& weight, Parameter<T>& bias, const Execution& execution, int layer)
    : weight_(weight), bias_(bias), execution_(execution), layer_(layer), forward_name_(layer_name(weight.name)) {}

template <class T>
void RowParallelLinear<T>::forward(std::span<const T> input, std::span<const T> residual, std::int64_t rows,
                                   std::span<T> sum, std::span<T> output) const {
  const auto inputs = static_cast<std::int64_t>(weight_.shape[0]);
  const auto outputs = static_cast<std::int64_t>(weight_.shape[1]);
  matmul<T>(Transpose::kNo, dense(input.data(), rows, inputs), Transpose::kNo,
            dense<T>(std::span<const T>(weight_.value).data(), inputs, outputs), T(1), T(0),
            dense(sum.data(), rows, outputs), execution_.threads);
  const std::span<T> reduced = sum.first(static_cast<std::size_t>(rows * outputs));
  execution_.tensor_group.all_reduce(reduced, comm::ReduceOp::kSum,
                                     {sim::TrafficClass::kTpForward, forward_name_, layer_});
  add_branch<T>(residual, reduced, bias_.value, rows, output, execution_.threads);
}

template <class T>
void RowParallelLinear<T>::backward(std::span<const T> input, std::span<const T> grad_output, std::int64_t rows,
                                    std::span<T> grad_input) const {
  linear_backward(weight_, bias_, input, grad_output, rows, grad_input, execution_.threads);
}

template class ColumnParallelLinear<float>;
template class ColumnParallelLinear<double>;
template class RowParallelLinear<float>;
template class RowParallelLinear<double>;

}  // namespace droptest::models
