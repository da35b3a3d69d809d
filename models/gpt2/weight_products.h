// SPDX-License-Identifier: Apache-2.0
// The products of a linear layer with its weight matrix.
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/execution.h"
#include "models/parameter.h"

namespace droptest::models {

/// output = input W. Shapes: input [rows, inputs], output [rows, outputs], W [inputs, outputs].
template <class T>
void product(const Parameter<T>& weight, std::span<const T> input, std::int64_t rows, std::span<T> output,
             const Execution& execution);

/// output += input W.
template <class T>
void add_product(const Parameter<T>& weight, std::span<const T> input, std::int64_t rows, std::span<T> output,
                 const Execution& execution);

/// Sets or adds input' grad_output to the weight's gradient, as the execution's gradient mode says, and sets
/// grad_input = grad_output W'. Shapes: as product().
template <class T>
void product_backward(const Parameter<T>& weight, std::span<const T> input, std::span<const T> grad_output,
                      std::int64_t rows, std::span<T> grad_input, const Execution& execution);

}  // namespace droptest::models
