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

/// For each row, residual_after = residual + (branch + branch_bias), and output = (residual_after - mean) x
/// inverse_deviation x gain + bias. `branch` is a sublayer output. Dropout sets elements of (branch + branch_bias) to
/// zero. Without a branch, the norm is that of the residual, and residual_after is not written. The variance is divided
/// by the width. Shapes: [rows, width]; branch_bias, gain, bias [width]; mean and inverse_deviation [rows], saved for
/// the backward pass.
struct NormForward {
  comm::ConstTensor residual, branch, branch_bias, gain, bias;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  comm::Tensor residual_after, output, mean, inverse_deviation;
  DropoutMask dropout{};  ///< dropout of the branch
};

/// grad_residual = grad_before + the gradient through the norm. grad_before is the gradient of residual_after so far;
/// it may be grad_residual itself, or empty (zero). If grad_branch_bias is not empty, it gets the column sums of
/// grad_residual. `mode` applies to the gradients of gain, bias and branch_bias. Shapes: as in NormForward.
struct NormBackward {
  comm::ConstTensor grad_output, residual_after, mean, inverse_deviation, gain;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  comm::ConstTensor grad_before;
  comm::Tensor grad_residual, grad_gain, grad_bias, grad_branch_bias;
  GradientMode mode = GradientMode::kAdd;
  comm::Tensor scratch;  ///< layernorm_scratch_elems() floats on a device; empty on the host
};

/// T is the type of all tensors.
template <class T>
void layernorm_forward(const NormForward& norm, const Team& team);
/// Computes only residual_after of a norm with a branch.
template <class T>
void add_branch(const NormForward& norm, const Team& team);
/// Adds to grad_residual, grad_gain and grad_bias, whatever the mode. grad_branch_bias is not touched:
/// add_column_sums() computes it.
template <class T>
void layernorm_backward(const NormBackward& norm, const Team& team);

// The device versions: E is float, Bf16 or Fp16; mean, inverse_deviation and the gradients of parameters are float.
// Mean and deviation are those of the stored (rounded) residual_after. Determinism: the order of all sums depends only
// on the shape and on whether the tensors are aligned to 16 bytes. Throws: CheckError if a tensor is too small, or for
// rows of more than 24576 elements in layernorm_forward(), or 8192 in layernorm_backward() (12288 without
// grad_branch_bias).

template <class E>
void layernorm_forward(const NormForward& norm, comm::Stream& stream);
template <class E>
void add_branch(const NormForward& norm, comm::Stream& stream);
template <class E>
void layernorm_backward(const NormBackward& norm, comm::Stream& stream);
/// The number of elements of NormBackward::scratch on a device.
std::uint64_t layernorm_scratch_elems(std::int64_t rows, std::int64_t width);
/// Computes only the gradient of branch_bias from grad_residual, with the bits of layernorm_backward().
template <class E>
void branch_bias_gradient(const NormBackward& norm, comm::Stream& stream);

}  // namespace droptest::models
