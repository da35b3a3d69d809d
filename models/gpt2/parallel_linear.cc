// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parallel_linear.h"

#include "models/gpt2/sum_over_ranks.h"
#include "models/gpt2/weight_products.h"
#include "models/kernels/residual.h"

namespace droptest::models {
namespace {

/// "h.3.attn.c_proj" of "h.3.attn.c_proj.weight".
std::string layer_name(const std::string& weight_name) { return weight_name.substr(0, weight_name.rfind('.')); }

template <class T>
LinearShape shape_of(const Parameter<T>& weight, std::int64_t rows) {
  return {rows, static_cast<std::int64_t>(weight.shape[0]), static_cast<std::int64_t>(weight.shape[1])};
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
  {
    const PhaseScope scope(execution_.times, Phase::kBias);
    fill_rows<T>(bias_.value, rows, output, execution_.team);
  }
  product(weight_, shape_of(weight_, rows), input, Output::kAdd, output, execution_);
}

template <class T>
void ColumnParallelLinear<T>::forward_without_bias(std::span<const T> input, std::int64_t rows,
                                                   std::span<T> output) const {
  product(weight_, shape_of(weight_, rows), input, Output::kSet, output, execution_);
}

template <class T>
void ColumnParallelLinear<T>::backward(std::span<const T> input, std::span<const T> grad_output, std::int64_t rows,
                                       std::span<T> grad_input) const {
  {
    const PhaseScope scope(execution_.times, Phase::kBias);
    add_column_sums<T>(grad_output, rows, bias_.gradient, execution_.team);
  }
  backward_without_bias(input, grad_output, rows, grad_input);
}

template <class T>
void ColumnParallelLinear<T>::backward_without_bias(std::span<const T> input, std::span<const T> grad_output,
                                                    std::int64_t rows, std::span<T> grad_input) const {
  product_backward(weight_, shape_of(weight_, rows), input, grad_output, T(1), execution_.gradient_mode, grad_input,
                   execution_);
  sum_over_ranks(execution_, grad_input.first(static_cast<std::size_t>(rows) * weight_.shape[0]),
                 {sim::TrafficClass::kTpBackward, backward_name_, layer_});
}

template <class T>
RowParallelLinear<T>::RowParallelLinear(Parameter<T>& weight, Parameter<T>& bias, const Execution& execution, int layer)
    : weight_(weight), bias_(bias), execution_(execution), layer_(layer), forward_name_(layer_name(weight.name)) {}

template <class T>
Branch<T> RowParallelLinear<T>::forward(std::span<const T> input, std::int64_t rows, std::span<T> sum) const {
  const std::span<T> reduced = sum.first(static_cast<std::size_t>(rows) * weight_.shape[1]);
  product(weight_, shape_of(weight_, rows), input, Output::kSet, reduced, execution_);
  sum_over_ranks(execution_, reduced, {sim::TrafficClass::kTpForward, forward_name_, layer_});
  return {reduced, bias_.value};
}

template <class T>
void RowParallelLinear<T>::backward(std::span<const T> input, std::span<const T> grad_output, std::int64_t rows,
                                    std::span<T> grad_input) const {
  {
    const PhaseScope scope(execution_.times, Phase::kBias);
    add_column_sums<T>(grad_output, rows, bias_.gradient, execution_.team);
  }
  product_backward(weight_, shape_of(weight_, rows), input, grad_output, T(1), execution_.gradient_mode, grad_input,
                   execution_);
}

template class ColumnParallelLinear<float>;
template class ColumnParallelLinear<double>;
template class RowParallelLinear<float>;
template class RowParallelLinear<double>;

}  // namespace droptest::models
