// SPDX-License-Identifier: Apache-2.0
// Layer normalisation with a gain and bias that every rank has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/gpt2/block_scratch.h"
#include "models/gpt2/execution.h"
#include "models/parameter.h"

namespace droptest::models {

/// Keeps each row's mean and deviation between forward and backward.
template <class T>
class LayerNorm {
 public:
  LayerNorm(Parameter<T>& gain, Parameter<T>& bias, const Execution& execution);

  /// stream = residual + branch, output = the norm of the stream. Without a branch the stream is left alone and the
  /// residual is normalised. Shapes: residual, stream, output [rows, width].
  void forward(std::span<const T> residual, const Branch<T>& branch, std::int64_t rows, std::span<T> stream,
               std::span<T> output);
  /// Adds to grad_input and to the parameters' gradients; `input`: the stream of forward.
  void backward(std::span<const T> grad_output, std::span<const T> input, std::int64_t rows,
                std::span<T> grad_input) const;

 private:
  Parameter<T>& gain_;
  Parameter<T>& bias_;
  const Execution& execution_;
  std::vector<T> mean_;
  std::vector<T> inverse_deviation_;
};

}  // namespace droptest::models
