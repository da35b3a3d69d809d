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
  AttentionActivations<T>& kept = execution_.keep == Keep::kNothing ? scratch.attention_activations : activations_;
  kept.normalized.resize(static_cast<std::size_t>(rows * width_));
  kept.qkv.resize(3 * mixed_elems);
  kept.row_statistics.resize(attention_statistics_elems(attention_shape(shape)));
  scratch.attention.resize(attention_scratch_elems(attention_shape(shape), execution_.team.threads()));
  kept.mixed.resize(mixed_elems);
  scratch.sum.resize(static_cast<std::size_t>(rows * width_));

  ln_1_.forward(residual, branch, rows, stream, kept.normalized);
  c_attn_.forward(kept.normalized, rows, kept.qkv);
  {
    const PhaseScope scope(execution_.times, Phase::kAttention);
    attention_forward<T>(kept.qkv, attention_shape(shape), kept.row_statistics, kept.mixed, scratch.attention,
                         execution_.team);
  }
  return c_proj_.forward(kept.mixed, rows, scratch.sum);
}

template <class T>
void AttentionBlock<T>::backward(std::span<const T> stream, const BatchShape& shape, BlockScratch<T>& scratch,
                                 std::span<T> gradient) const {
  const std::int64_t rows = shape.rows();
  const auto& [normalized, qkv, row_statistics, mixed] = activations_;
  scratch.grad_branch.resize(mixed.size());
  scratch.grad_qkv.resize(qkv.size());
  scratch.grad_normalized.resize(normalized.size());
  scratch.attention.resize(attention_scratch_elems(attention_shape(shape), execution_.team.threads()));

  c_proj_.backward(mixed, gradient, rows, scratch.grad_branch);
  {
    const PhaseScope scope(execution_.times, Phase::kAttention);
    attention_backward<T>(scratch.grad_branch, qkv, row_statistics, attention_shape(shape), scratch.grad_qkv,
                          scratch.attention, execution_.team);
  }
  c_attn_.backward(normalized, scratch.grad_qkv, rows, scratch.grad_normalized);
  ln_1_.backward(scratch.grad_normalized, stream, rows, gradient);
}

template class AttentionBlock<float>;
template class AttentionBlock<double>;

}  // namespace droptest::models
