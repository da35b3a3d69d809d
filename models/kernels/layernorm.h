// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last dimension.
#pragma once

#include <cstdint>
#include <span>

#include "models/team.h"

namespace droptest::models {

inline constexpr double kLayerNormEpsilon = 1e-5;

/// output = (input - mean) x inverse_deviation x gain + bias, row by row, with the variance over all C values.
/// Shapes: B = rows, C = width; input, output [B, C]; gain, bias [C]; mean, inverse_deviation [B], kept for backward.
template <class T>
void layernorm_forward(std::span<const T> input, std::span<const T> gain, std::span<const T> bias, std::int64_t rows,
                       std::int64_t width, std::span<T> output, std::span<T> mean, std::span<T> inverse_deviation,
                       const Team& team);

/// stream = residual + (branch + branch_bias), and layernorm_forward of the stream, in one pass over the rows.
/// Shapes: residual, branch, stream, output [rows, width]; branch_bias, gain, bias [width]; the stream may be the
/// residual.
template <class T>
void residual_layernorm_forward(std::span<const T> residual, std::span<const T> branch, std::span<const T> branch_bias,
                                std::span<const T> gain, std::span<const T> bias, std::int64_t rows, std::int64_t width,
                                std::span<T> stream, std::span<T> output, std::span<T> mean,
                                std::span<T> inverse_deviation, const Team& team);

/// Adds the gradients of input, gain and bias to grad_input, grad_gain and grad_bias.
template <class T>
void layernorm_backward(std::span<const T> grad_output, std::span<const T> input, std::span<const T> gain,
                        std::span<const T> mean, std::span<const T> inverse_deviation, std::int64_t rows,
                        std::int64_t width, std::span<T> grad_input, std::span<T> grad_gain, std::span<T> grad_bias,
                        const Team& team);

}  // namespace droptest::models
