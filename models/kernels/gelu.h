// SPDX-License-Identifier: Apache-2.0
// GELU in its tanh form, as GPT-2 has it, with the bias before it.
#pragma once

#include <cstdint>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/team.h"

namespace droptest::models {

/// With x = values + bias: output = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), and values becomes the derivative
/// d output / d x, which is all that backward needs. Shapes: values, output [rows, width]; bias [width].
/// Source: Hendrycks and Gimpel 2016.
template <class T>
void bias_gelu_forward(std::span<const T> bias, std::int64_t rows, std::span<T> values, std::span<T> output,
                       const Team& team);

/// values become x/2 (1 + tanh(...)) as above, the same bits as bias_gelu_forward's output; no derivative is left.
template <class T>
void bias_gelu(std::span<const T> bias, std::int64_t rows, std::span<T> values, const Team& team);

/// gradient *= derivatives, and bias_gradient += the rows of the gradient added up in order.
template <class T>
void bias_gelu_backward(std::span<const T> derivatives, std::int64_t rows, std::span<T> gradient,
                        std::span<T> bias_gradient, const Team& team);

// On a device, for E float, Bf16 or Fp16, x itself is saved for backward, as cuBLASLt's epilogues do
// (models/kernels/matrix_products.h, which needs these only where the library has no such epilogue).

/// values += bias, and output = gelu(values); the output may be the values, which then are not saved.
/// Shapes: values, output [rows, width]; bias [width].
template <class E>
void bias_gelu(comm::DeviceSpan<const E> bias, std::int64_t rows, comm::DeviceSpan<E> values,
               comm::DeviceSpan<E> output, comm::Stream& stream);

/// gradient *= d gelu(x) / d x at x = inputs. Shapes: equal.
template <class E>
void gelu_backward(comm::DeviceSpan<const E> inputs, comm::DeviceSpan<E> gradient, comm::Stream& stream);

}  // namespace droptest::models
