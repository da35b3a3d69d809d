// SPDX-License-Identifier: Apache-2.0
// The products of a linear layer with its weight matrix, in the precision that the model computes with.
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/execution.h"
#include "models/kernels/weight_layout.h"
#include "models/parameter.h"

namespace droptest::models {

struct LinearShape {
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;  ///< may be fewer than the embedding has rows
  WeightLayout layout = WeightLayout::kInputsByOutputs;
};

enum class Output : std::uint8_t { kSet, kAdd };

/// output = input W, or += where `mode` is kAdd. Shapes: input [rows, inputs], output [rows, outputs].
template <class T>
void product(const Parameter<T>& weight, const LinearShape& shape, std::span<const T> input, Output mode,
             std::span<T> output, const Execution& execution);

/// The weight's gradient is set to, or gets added, factor x input' grad_output; grad_input = factor x grad_output W'.
/// Shapes: as product().
template <class T>
void product_backward(const Parameter<T>& weight, const LinearShape& shape, std::span<const T> input,
                      std::span<const T> grad_output, T factor, GradientMode mode, std::span<T> grad_input,
                      const Execution& execution);

}  // namespace droptest::models
