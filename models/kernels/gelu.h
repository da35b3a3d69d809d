// SPDX-License-Identifier: Apache-2.0
// GELU in its tanh form, as GPT-2 has it.
#pragma once

#include <span>

namespace droptest::models {

/// output = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Shapes: equal, any. Source: Hendrycks and Gimpel 2016.
template <class T>
void gelu_forward(std::span<const T> input, std::span<T> output, int threads);

/// gradient *= d gelu(input) / d input.
template <class T>
void gelu_backward(std::span<const T> input, std::span<T> gradient, int threads);

}  // namespace droptest::models
