// SPDX-License-Identifier: Apache-2.0
// The attention half of a block: c_proj(attention(c_attn(ln_1(x)))), to be added to the stream x.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/gpt2/block_scratch.h"
#include "models/gpt2/execution.h"
#include "models/gpt2/layer_norm.h"
#include "models/gpt2/parallel_linear.h"
#include "models/kernels/attention.h"
#include "models/parameter.h"

namespace droptest::models {

template <class T>
class AttentionBlock {
 public:
  /// `parameters`: ln_1, c_attn and c_proj, weight before bias. `heads`: this rank's.
  AttentionBlock(std::span<Parameter<T>> parameters, std::int64_t heads, std::int64_t head_width,
                 const Execution& execution, int layer);

  /// stream = residual + branch (which may lie in scratch.sum), or the residual where there is no branch; returns what
  /// this half adds to it, in scratch.sum. Ranks: all; one all_reduce. Shapes: residual, stream [rows, width].
  Branch<T> forward(std::span<const T> residual, const Branch<T>& branch, const BatchShape& shape,
                    BlockScratch<T>& scratch, std::span<T> stream);
  /// `gradient` of the stream behind this half becomes that of the stream before it, which is `stream`. Ranks: all; one
  /// all_reduce.
  void backward(std::span<const T> stream, const BatchShape& shape, BlockScratch<T>& scratch,
                std::span<T> gradient) const;

 private:
  AttentionShape attention_shape(const BatchShape& shape) const;

  std::int64_t width_;
  std::int64_t heads_;
  std::int64_t head_width_;
  const Execution& execution_;
  LayerNorm<T> ln_1_;
  ColumnParallelLinear<T> c_attn_;
  RowParallelLinear<T> c_proj_;
  AttentionActivations<T> activations_;
};

}  // namespace droptest::models
