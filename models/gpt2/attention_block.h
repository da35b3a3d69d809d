// SPDX-License-Identifier: Apache-2.0
// The attention half of a block: x + c_proj(attention(c_attn(ln_1(x)))).
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

  /// Ranks: all; one all_reduce. Shapes: input, output [rows, width].
  void forward(std::span<const T> input, const BatchShape& shape, BlockScratch<T>& scratch, std::span<T> output);
  /// `gradient` of the output becomes that of the input; `input` as in forward. Ranks: all; one all_reduce.
  void backward(std::span<const T> input, const BatchShape& shape, BlockScratch<T>& scratch,
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
  std::vector<T> normalized_;
  std::vector<T> qkv_;
  std::vector<T> probabilities_;
  std::vector<T> mixed_;
};

}  // namespace droptest::models
