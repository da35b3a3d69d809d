// SPDX-License-Identifier: Apache-2.0
// The second half of a block: c_proj(gelu(c_fc(ln_2(x)))), to be added to the stream x.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/gpt2/block_scratch.h"
#include "models/gpt2/execution.h"
#include "models/gpt2/layer_norm.h"
#include "models/gpt2/parallel_linear.h"
#include "models/parameter.h"

namespace droptest::models {

template <class T>
class MlpBlock {
 public:
  /// `parameters`: ln_2, c_fc and c_proj, weight before bias.
  MlpBlock(std::span<Parameter<T>> parameters, const Execution& execution, int layer);

  /// stream = residual + branch (which may lie in scratch.sum); returns what this half adds to it, in scratch.sum.
  /// Ranks: all; one all_reduce. Shapes: residual, stream [rows, width].
  Branch<T> forward(std::span<const T> residual, const Branch<T>& branch, const BatchShape& shape,
                    BlockScratch<T>& scratch, std::span<T> stream);
  /// `gradient` of the stream behind this half becomes that of the stream before it, which is `stream`. Ranks: all; one
  /// all_reduce.
  void backward(std::span<const T> stream, const BatchShape& shape, BlockScratch<T>& scratch,
                std::span<T> gradient) const;

 private:
  std::int64_t width_;
  std::int64_t hidden_;  ///< columns here
  const Execution& execution_;
  LayerNorm<T> ln_2_;
  ColumnParallelLinear<T> c_fc_;
  RowParallelLinear<T> c_proj_;
  MlpActivations<T> activations_;
};

}  // namespace droptest::models
