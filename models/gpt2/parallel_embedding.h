// SPDX-License-Identifier: Apache-2.0
// Token and position embedding, the tokens' rows cut over ranks.
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/execution.h"
#include "models/kernels/embedding.h"
#include "models/parameter.h"

namespace droptest::models {

/// x = sum over ranks of the rows a rank has, plus the position's row, which every rank has.
template <class T>
class ParallelEmbedding {
 public:
  /// `range`: the true tokens of this rank's rows of wte.
  ParallelEmbedding(Parameter<T>& wte, Parameter<T>& wpe, TokenRange range, const Execution& execution);

  /// Ranks: all; one all_reduce. Shapes: tokens [batch, length], output [batch, length, width].
  void forward(std::span<const std::int32_t> tokens, const BatchShape& shape, std::span<T> output) const;
  /// Adds to the gradients of both tables; no communication.
  void backward(std::span<const std::int32_t> tokens, std::span<const T> grad_output, const BatchShape& shape) const;

 private:
  Parameter<T>& wte_;
  Parameter<T>& wpe_;
  TokenRange range_;
  const Execution& execution_;
};

}  // namespace droptest::models
