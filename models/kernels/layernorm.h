// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last dimension.
#pragma once

#include <cstdint>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/gradient_mode.h"
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

/// The stream of residual_layernorm_forward alone. Shapes: as there.
template <class T>
void add_branch(std::span<const T> residual, std::span<const T> branch, std::span<const T> branch_bias,
                std::int64_t rows, std::int64_t width, std::span<T> stream, const Team& team);

/// Adds the gradients of input, gain and bias to grad_input, grad_gain and grad_bias.
template <class T>
void layernorm_backward(std::span<const T> grad_output, std::span<const T> input, std::span<const T> gain,
                        std::span<const T> mean, std::span<const T> inverse_deviation, std::int64_t rows,
                        std::int64_t width, std::span<T> grad_input, std::span<T> grad_gain, std::span<T> grad_bias,
                        const Team& team);

// On a device, for E float or Bf16; moments are float and are those of the stored (rounded) stream.

template <class E>
void layernorm_forward(comm::DeviceSpan<const E> input, comm::DeviceSpan<const E> gain, comm::DeviceSpan<const E> bias,
                       std::int64_t rows, std::int64_t width, comm::DeviceSpan<E> output, comm::DeviceSpan<float> mean,
                       comm::DeviceSpan<float> inverse_deviation, comm::Stream& stream);

/// branch_bias may be empty. The residual stream after the branch may be the one before it.
template <class E>
void residual_layernorm_forward(comm::DeviceSpan<const E> residual, comm::DeviceSpan<const E> branch,
                                comm::DeviceSpan<const E> branch_bias, comm::DeviceSpan<const E> gain,
                                comm::DeviceSpan<const E> bias, std::int64_t rows, std::int64_t width,
                                comm::DeviceSpan<E> residual_after, comm::DeviceSpan<E> output,
                                comm::DeviceSpan<float> mean, comm::DeviceSpan<float> inverse_deviation,
                                comm::Stream& stream);

/// The residual stream of residual_layernorm_forward alone.
template <class E>
void add_branch(comm::DeviceSpan<const E> residual, comm::DeviceSpan<const E> branch,
                comm::DeviceSpan<const E> branch_bias, std::int64_t rows, std::int64_t width,
                comm::DeviceSpan<E> residual_after, comm::Stream& stream);

/// Where layernorm_backward leaves the gradients of parameters.
struct LayerNormGradients {
  comm::DeviceSpan<float> gain;
  comm::DeviceSpan<float> bias;
  comm::DeviceSpan<float> branch_bias;  ///< of residual_layernorm_forward: the column sums of grad_input; or empty
  GradientMode mode = GradientMode::kAdd;
};

/// Elements of layernorm_backward's scratch.
std::uint64_t layernorm_scratch_elems(std::int64_t rows, std::int64_t width);
/// grad_input = grad_residual + the gradient through the normalisation; grad_residual may be empty (zero) and may be
/// grad_input. Determinism: the order of all sums depends on the shape alone.
template <class E>
void layernorm_backward(comm::DeviceSpan<const E> grad_output, comm::DeviceSpan<const E> input,
                        comm::DeviceSpan<const E> gain, comm::DeviceSpan<const float> mean,
                        comm::DeviceSpan<const float> inverse_deviation, std::int64_t rows, std::int64_t width,
                        comm::DeviceSpan<const E> grad_residual, comm::DeviceSpan<E> grad_input,
                        const LayerNormGradients& gradients, comm::DeviceSpan<float> scratch, comm::Stream& stream);

/// LayerNormGradients::branch_bias alone, with the same bits: the column sums of grad_input [rows, width].
template <class E>
void branch_bias_gradient(comm::DeviceSpan<const E> grad_input, std::int64_t rows, std::int64_t width,
                          GradientMode mode, comm::DeviceSpan<float> branch_bias, comm::Stream& stream);

}  // namespace droptest::models
