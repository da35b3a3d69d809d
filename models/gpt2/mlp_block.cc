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
Branch<T> MlpBlock<T>::forward(std::span<const T> residual, const Branch<T>& branch, const BatchShape& shape,
                               BlockScratch<T>& scratch, std::span<T> stream) {
  const std::int64_t rows = shape.rows();
  const bool keep = execution_.keep == Keep::kForBackward;
  MlpActivations<T>& kept = keep ? activations_ : scratch.mlp_activations;
  kept.normalized.resize(static_cast<std::size_t>(rows * width_));
  kept.after_gelu.resize(static_cast<std::size_t>(rows * hidden_));
  if (keep) kept.slopes.resize(kept.after_gelu.size());
  scratch.sum.resize(static_cast<std::size_t>(rows * width_));

  ln_2_.forward(residual, branch, rows, stream, kept.normalized);
  c_fc_.forward_without_bias(kept.normalized, rows, keep ? kept.slopes : kept.after_gelu);
  {
    const PhaseScope scope(execution_.times, Phase::kGelu);
    if (keep) {
      bias_gelu_forward<T>(c_fc_.bias().value, rows, kept.slopes, kept.after_gelu, execution_.team);
    } else {
      bias_gelu<T>(c_fc_.bias().value, rows, kept.after_gelu, execution_.team);
    }
  }
  return c_proj_.forward(kept.after_gelu, rows, scratch.sum);
}

template <class T>
void MlpBlock<T>::backward(std::span<const T> stream, const BatchShape& shape, BlockScratch<T>& scratch,
                           std::span<T> gradient) const {
  const std::int64_t rows = shape.rows();
  const auto& [normalized, slopes, after_gelu] = activations_;
  scratch.grad_branch.resize(after_gelu.size());
  scratch.grad_normalized.resize(normalized.size());

  c_proj_.backward(after_gelu, gradient, rows, scratch.grad_branch);
  {
    const PhaseScope scope(execution_.times, Phase::kGelu);
    bias_gelu_backward<T>(slopes, rows, scratch.grad_branch, c_fc_.bias_gradient(), execution_.team);
  }
  c_fc_.backward_without_bias(normalized, scratch.grad_branch, rows, scratch.grad_normalized);
  ln_2_.backward(scratch.grad_normalized, stream, rows, gradient);
}

template class MlpBlock<float>;
template class MlpBlock<double>;

}  // namespace droptest::models
