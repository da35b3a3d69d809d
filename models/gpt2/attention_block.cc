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
Branch<T> AttentionBlock<T>::forward(std::span<const T> residual, const Branch<T>& branch, const BatchShape& shape,
                                     BlockScratch<T>& scratch, std::span<T> stream) {
  const std::int64_t rows = shape.rows();
  const auto mixed_elems = static_cast<std::size_t>(rows * heads_ * head_width_);
  normalized_.resize(static_cast<std::size_t>(rows * width_));
  qkv_.resize(3 * mixed_elems);
  row_statistics_.resize(attention_statistics_elems(attention_shape(shape)));
  scratch.attention.resize(attention_scratch_elems(attention_shape(shape), execution_.team.threads()));
  mixed_.resize(mixed_elems);
  scratch.sum.resize(static_cast<std::size_t>(rows * width_));

  ln_1_.forward(residual, branch, rows, stream, normalized_);
  c_attn_.forward(normalized_, rows, qkv_);
  {
    const PhaseScope scope(execution_.times, Phase::kAttention);
    attention_forward<T>(qkv_, attention_shape(shape), row_statistics_, mixed_, scratch.attention, execution_.team);
  }
  return c_proj_.forward(mixed_, rows, scratch.sum);
}

template <class T>
void AttentionBlock<T>::backward(std::span<const T> stream, const BatchShape& shape, BlockScratch<T>& scratch,
                                 std::span<T> gradient) const {
  const std::int64_t rows = shape.rows();
  scratch.grad_branch.resize(mixed_.size());
  scratch.grad_qkv.resize(qkv_.size());
  scratch.grad_normalized.resize(normalized_.size());
  scratch.attention.resize(attention_scratch_elems(attention_shape(shape), execution_.team.threads()));

  c_proj_.backward(mixed_, gradient, rows, scratch.grad_branch);
  {
    const PhaseScope scope(execution_.times, Phase::kAttention);
    attention_backward<T>(scratch.grad_branch, qkv_, row_statistics_, attention_shape(shape), scratch.grad_qkv,
                          scratch.attention, execution_.team);
  }
  c_attn_.backward(normalized_, scratch.grad_qkv, rows, scratch.grad_normalized);
  ln_1_.backward(scratch.grad_normalized, stream, rows, gradient);
}

template class AttentionBlock<float>;
template class AttentionBlock<double>;

}  // namespace droptest::models
