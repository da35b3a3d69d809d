// SPDX-License-Identifier: Apache-2.0
// Linear layers cut over the ranks of a tensor-parallel group.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "models/gpt2/block_scratch.h"
#include "models/gpt2/execution.h"
#include "models/parameter.h"

namespace droptest::models {

/// y_r = x W_r + b_r: the outputs are cut over ranks. Its input is whole on every rank, so the backward pass adds up
/// the ranks' input gradients. Source: Shoeybi et al. 2019, section 3 (operator f).
template <class T>
class ColumnParallelLinear {
 public:
  /// Shapes: weight [inputs, outputs here], bias [outputs here]. Parameters and execution are borrowed.
  ColumnParallelLinear(Parameter<T>& weight, Parameter<T>& bias, const Execution& execution, int layer);

  /// Shapes: input [rows, inputs], output [rows, outputs here].
  void forward(std::span<const T> input, std::int64_t rows, std::span<T> output) const;
  /// x W_r, for a caller that adds the bias in a pass of its own.
  void forward_without_bias(std::span<const T> input, std::int64_t rows, std::span<T> output) const;
  const Parameter<T>& bias() const { return bias_; }

  /// Adds to the parameters' gradients and sets grad_input. Ranks: all; one all_reduce of grad_input.
  void backward(std::span<const T> input, std::span<const T> grad_output, std::int64_t rows,
                std::span<T> grad_input) const;
  /// The same where the caller has added to the bias' gradient.
  void backward_without_bias(std::span<const T> input, std::span<const T> grad_output, std::int64_t rows,
                             std::span<T> grad_input) const;
  std::span<T> bias_gradient() const { return bias_.gradient; }

 private:
  Parameter<T>& weight_;
  Parameter<T>& bias_;
  const Execution& execution_;
  int layer_;
  std::string backward_name_;
};

/// y = sum over ranks of x_r W_r, plus a bias that is added once, after the sum: the inputs are cut over ranks.
/// Source: Shoeybi et al. 2019, section 3 (operator g).
template <class T>
class RowParallelLinear {
 public:
  /// Shapes: weight [inputs here, outputs], bias [outputs] (a copy on every rank).
  RowParallelLinear(Parameter<T>& weight, Parameter<T>& bias, const Execution& execution, int layer);

  /// The sum, and the bias that is to be added to it. Ranks: all; one all_reduce of `sum`.
  /// Shapes: input [rows, inputs here]; sum [rows, outputs].
  Branch<T> forward(std::span<const T> input, std::int64_t rows, std::span<T> sum) const;
  /// Adds to the parameters' gradients and sets grad_input; no communication. The bias' gradient is the same on every
  /// rank because grad_output is.
  void backward(std::span<const T> input, std::span<const T> grad_output, std::int64_t rows,
                std::span<T> grad_input) const;

 private:
  Parameter<T>& weight_;
  Parameter<T>& bias_;
  const Execution& execution_;
  int layer_;
  std::string forward_name_;
};

}  // namespace droptest::models
