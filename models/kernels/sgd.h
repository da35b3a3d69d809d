// SPDX-License-Identifier: Apache-2.0
// The update of tensors by stochastic gradient descent with momentum.
#pragma once

#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/kernels/tensor_segments.h"
#include "models/team.h"

namespace droptest::models {

/// The scalars of one update.
struct SgdStep {
  double learning_rate = 0;
  double gradient_scale = 1;
  double momentum = 0;
  double weight_decay = 0;
};

/// velocity = momentum x velocity + (gradient_scale x gradient + weight_decay x value), then value -= learning_rate x
/// velocity. Shapes: all equal. Source: Sutskever et al. 2013, as PyTorch's SGD has it, without dampening.
template <class T>
void sgd_update(std::span<T> value, std::span<const T> gradient, std::span<T> velocity, const SgdStep& step,
                const Team& team);

/// The update of all tensors of a table in one launch on a device; decay, learning rates, `rounded` and `factor` as in
/// adamw_update().
template <class E>
void sgd_update(const TensorSegments& segments, comm::DeviceSpan<float> value, comm::DeviceSpan<const float> gradient,
                comm::DeviceSpan<float> velocity, comm::DeviceSpan<E> rounded, const SgdStep& step,
                comm::DeviceSpan<const double> factor, comm::Stream& stream);

}  // namespace droptest::models
