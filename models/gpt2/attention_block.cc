// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/attention_block.h"

namespace droptest::models {

template <class T>
AttentionBlock<T>::AttentionBlock(std::span<Parameter<T>> parameters, std::int64_t heads, std::int64_t head_width,
                                  const Execution& execution, int layer)
    : width_(static_cast<std::int64_t>(parameters[0].value.size())),
      heads_(heads),
      head_width_(head_width),
      execution_(execution),
      ln_1_(parameters[0], parameters[1], execution),
      c_attn_(parameters[2], parameters[3], execution, layer),
      c_proj_(parameters[4], parameters[5], execution, layer) {}

template <class T>
AttentionShape AttentionBlock<T>::attention_shape(const BatchShape& shape) const {
  return {shape.batch, shape.length, heads_, head_width_};
}

template <class T>
void AttentionBlock<T>::forward(std::span<const T> input, const BatchShape& shape, BlockScratch<T>& scratch,
                                std::span<T> output) {
  const std::int64_t rows = shape.rows();
  const auto mixed_elems = static_cast<std::size_t>(rows * heads_ * head_width_);
  normalized_.resize(static_cast<std::size_t>(rows * width_));
  qkv_.resize(3 * mixed_elems);
  probabilities_.resize(attention_probability_elems(attention_shape(shape)));
  mixed_.resize(mixed_elems);
  scratch.sum.resize(static_cast<std::size_t>(rows * width_));

  ln_1_.forward(input, rows, normalized_);
  c_attn_.forward(normalized_, rows, qkv_);
  attention_forward<T>(qkv_, attention_shape(shape), probabilities_, mixed_, execution_.threads);
  c_proj_.forward(mixed_, input, rows, scratch.sum, output);
}

template <class T>
void AttentionBlock<T>::backward(std::span<const T> input, const BatchShape& shape, BlockScratch<T>& scratch,
                                 std::span<T> gradient) const {
  const std::int64_t rows = shape.rows();
  scratch.grad_branch.resize(mixed_.size());
  scratch.grad_qkv.resize(qkv_.size());
  scratch.grad_normalized.resize(normalized_.size());
  scratch.attention.resize(attention_scratch_elems(attention_shape(shape), execution_.threads));

  c_proj_.backward(mixed_, gradient, rows, scratch.grad_branch);
  attention_backward<T>(scratch.grad_branch, qkv_, probabilities_, attention_shape(shape), scratch.grad_qkv,
                        scratch.attention, execution_.threads);
  c_attn_.backward(normalized_, scratch.grad_qkv, rows, scratch.grad_normalized);
  ln_1_.backward(scratch.grad_normalized, input, rows, gradient);
}

template class AttentionBlock<float>;
template class AttentionBlock<double>;

}  // namespace droptest::models
