// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last dimension.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "comm/device/stream.h"
#include "models/gradient_mode.h"
#include "models/kernels/dropout.h"
#include "models/team.h"

namespace droptest::models {

inline constexpr double kLayerNormEpsilon = 1e-5;

/// residual_after = residual + (branch + branch_bias), and output = (residual_after - mean) x inverse_deviation x gain
/// + bias, row by row, with the variance over all values of a row; dropout, where it is on, sets elements of (branch +
/// branch_bias) to zero. Without a branch residual_after is the residual. The two may be one tensor. Shapes: [rows,
/// width]; branch_bias, gain, bias [width]; mean and inverse_deviation [rows], saved for the backward pass.
struct NormForward {
  comm::ConstTensor residual, branch, branch_bias, gain, bias;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  comm::Tensor residual_after, output, mean, inverse_deviation;
  DropoutMask dropout{};  ///< of the branch
};

/// grad_residual = grad_before + the gradient through the norm. grad_before, the gradient of residual_after so far, may
/// be grad_residual itself, or empty (zero). The gradient of branch_bias, where it is not empty, are the column sums of
/// grad_residual. `mode` is of the gradients of gain, bias and branch_bias. Shapes: as forward.
struct NormBackward {
  comm::ConstTensor grad_output, residual_after, mean, inverse_deviation, gain;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  comm::ConstTensor grad_before;
  comm::Tensor grad_residual, grad_gain, grad_bias, grad_branch_bias;
  GradientMode mode = GradientMode::kAdd;
  comm::Tensor scratch;  ///< of a device: layernorm_scratch_elems() floats
};

/// T is the type of all tensors.
template <class T>
void layernorm_forward(const NormForward& norm, const Team& team);
/// residual_after alone, of a norm with a branch.
template <class T>
void add_branch(const NormForward& norm, const Team& team);
/// Adds to grad_residual, grad_gain and grad_bias, whatever the mode; grad_branch_bias is left to add_column_sums().
template <class T>
void layernorm_backward(const NormBackward& norm, const Team& team);

// On a device, for E float, Bf16 or Fp16; moments and the gradients of parameters are float. Moments are those of the
// stored (rounded) residual_after. Determinism: the order of all sums depends on the shape alone.

template <class E>
void layernorm_forward(const NormForward& norm, comm::Stream& stream);
template <class E>
void add_branch(const NormForward& norm, comm::Stream& stream);
template <class E>
void layernorm_backward(const NormBackward& norm, comm::Stream& stream);
std::uint64_t layernorm_scratch_elems(std::int64_t rows, std::int64_t width);
/// The gradient of branch_bias alone, with the same bits, from grad_residual.
template <class E>
void branch_bias_gradient(const NormBackward& norm, comm::Stream& stream);

}  // namespace droptest::models
