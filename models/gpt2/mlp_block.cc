// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/mlp_block.h"

#include "models/kernels/gelu.h"

namespace droptest::models {

template <class T>
MlpBlock<T>::MlpBlock(std::span<Parameter<T>> parameters, const Execution& execution, int layer)
    : width_(static_cast<std::int64_t>(parameters[0].value.size())),
      hidden_(static_cast<std::int64_t>(parameters[3].value.size())),
      execution_(execution),
      ln_2_(parameters[0], parameters[1], execution),
      c_fc_(parameters[2], parameters[3], execution, layer),
      c_proj_(parameters[4], parameters[5], execution, layer) {}

template <class T>
void MlpBlock<T>::forward(std::span<const T> input, const BatchShape& shape, BlockScratch<T>& scratch,
                          std::span<T> output) {
  const std::int64_t rows = shape.rows();
  normalized_.resize(static_cast<std::size_t>(rows * width_));
  before_gelu_.resize(static_cast<std::size_t>(rows * hidden_));
  after_gelu_.resize(before_gelu_.size());
  scratch.sum.resize(static_cast<std::size_t>(rows * width_));

  ln_2_.forward(input, rows, normalized_);
  c_fc_.forward(normalized_, rows, before_gelu_);
  gelu_forward<T>(before_gelu_, after_gelu_, execution_.threads);
  c_proj_.forward(after_gelu_, input, rows, scratch.sum, output);
}

template <class T>
void MlpBlock<T>::backward(std::span<const T> input, const BatchShape& shape, BlockScratch<T>& scratch,
                           std::span<T> gradient) const {
  const std::int64_t rows = shape.rows();
  scratch.grad_branch.resize(after_gelu_.size());
  scratch.grad_normalized.resize(normalized_.size());

  c_proj_.backward(after_gelu_, gradient, rows, scratch.grad_branch);
  gelu_backward<T>(before_gelu_, scratch.grad_branch, execution_.threads);
  c_fc_.backward(normalized_, scratch.grad_branch, rows, scratch.grad_normalized);
  ln_2_.backward(scratch.grad_normalized, input, rows, gradient);
}

template class MlpBlock<float>;
template class MlpBlock<double>;

}  // namespace droptest::models
