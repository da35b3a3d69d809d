// SPDX-License-Identifier: Apache-2.0
// GPT-2's GELU (the tanh form) with the bias of its argument.
#pragma once

#include <cstdint>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/team.h"

namespace droptest::models {

/// Let x = values + bias. Sets output = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), and values to the derivative d
/// output / d x, which is all that the backward pass needs. Shapes: values, output [rows, width]; bias [width].
/// Source: Hendrycks and Gimpel 2016.
template <class T>
void bias_gelu_forward(std::span<const T> bias, std::int64_t rows, std::span<T> values, std::span<T> output,
                       const Team& team);

/// Sets values to the output of bias_gelu_forward(), bit for bit, without the derivative.
template <class T>
void bias_gelu(std::span<const T> bias, std::int64_t rows, std::span<T> values, const Team& team);

/// gradient *= derivatives, and bias_gradient += the sum of the rows of the gradient, in order.
template <class T>
void bias_gelu_backward(std::span<const T> derivatives, std::int64_t rows, std::span<T> gradient,
                        std::span<T> bias_gradient, const Team& team);

// The device versions: E is float, Bf16 or Fp16. They save x for the backward pass, as the epilogues of cuBLASLt do.
// MatrixProducts calls them if it does not use such an epilogue.

/// values += bias, and output = gelu(values). The output may be `values` itself; then x is not saved.
/// Shapes: values, output [rows, width]; bias [width].
template <class E>
void bias_gelu(comm::DeviceSpan<const E> bias, std::int64_t rows, comm::DeviceSpan<E> values,
               comm::DeviceSpan<E> output, comm::Stream& stream);

/// gradient *= d gelu(x) / d x at x = inputs. Shapes: equal.
template <class E>
void gelu_backward(comm::DeviceSpan<const E> inputs, comm::DeviceSpan<E> gradient, comm::Stream& stream);

}  // namespace droptest::models
