// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/layer_norm.h"

#include "models/kernels/layernorm.h"

namespace droptest::models {

template <class T>
LayerNorm<T>::LayerNorm(Parameter<T>& gain, Parameter<T>& bias, const Execution& execution)
    : gain_(gain), bias_(bias), execution_(execution) {}

template <class T>
void LayerNorm<T>::forward(std::span<const T> residual, const Branch<T>& branch, std::int64_t rows, std::span<T> stream,
                           std::span<T> output) {
  const PhaseScope scope(execution_.times, Phase::kLayerNorm);
  const auto width = static_cast<std::int64_t>(gain_.value.size());
  mean_.resize(static_cast<std::size_t>(rows));
  inverse_deviation_.resize(static_cast<std::size_t>(rows));
  if (branch.sum.empty()) {
    layernorm_forward<T>(residual, gain_.value, bias_.value, rows, width, output, mean_, inverse_deviation_,
                         execution_.team);
  } else {
    residual_layernorm_forward<T>(residual, branch.sum, branch.bias, gain_.value, bias_.value, rows, width, stream,
                                  output, mean_, inverse_deviation_, execution_.team);
  }
}

template <class T>
void LayerNorm<T>::backward(std::span<const T> grad_output, std::span<const T> input, std::int64_t rows,
                            std::span<T> grad_input) const {
  const PhaseScope scope(execution_.times, Phase::kLayerNorm);
  layernorm_backward<T>(grad_output, input, gain_.value, mean_, inverse_deviation_, rows,
                        static_cast<std::int64_t>(gain_.value.size()), grad_input, gain_.gradient, bias_.gradient,
                        execution_.team);
}

template class LayerNorm<float>;
template class LayerNorm<double>;

}  // namespace droptest::models
