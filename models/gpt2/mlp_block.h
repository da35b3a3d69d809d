// SPDX-License-Identifier: Apache-2.0
// The second half of a block: x + c_proj(gelu(c_fc(ln_2(x)))).
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

  /// Ranks: all; one all_reduce. Shapes: input, output [rows, width].
  void forward(std::span<const T> input, const BatchShape& shape, BlockScratch<T>& scratch, std::span<T> output);
  /// `gradient` of the output becomes that of the input; `input` as in forward. Ranks: all; one all_reduce.
  void backward(std::span<const T> input, const BatchShape& shape, BlockScratch<T>& scratch,
                std::span<T> gradient) const;

 private:
  std::int64_t width_;
  std::int64_t hidden_;  ///< columns here
  const Execution& execution_;
  LayerNorm<T> ln_2_;
  ColumnParallelLinear<T> c_fc_;
  RowParallelLinear<T> c_proj_;
  std::vector<T> normalized_;
  std::vector<T> before_gelu_;
  std::vector<T> after_gelu_;
};

}  // namespace droptest::models
