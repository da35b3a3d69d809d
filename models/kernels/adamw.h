// SPDX-License-Identifier: Apache-2.0
// AdamW's update of one tensor.
#pragma once

#include <cmath>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/kernels/tensor_segments.h"
#include "models/team.h"

namespace droptest::models {

/// The scalars of one update. The bias corrections are 1 - beta^step.
struct AdamWStep {
  double learning_rate = 0;
  double gradient_scale = 1;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  double bias_correction1 = 1;
  double bias_correction2 = 1;
};

/// The scalars in the form that the update loop uses: computed in double and rounded once.
template <class T>
struct AdamWScalars {
  explicit AdamWScalars(const AdamWStep& step)
      : scale(static_cast<T>(step.gradient_scale)),
        keep(static_cast<T>(1.0 - step.learning_rate * step.weight_decay)),
        beta1(static_cast<T>(step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        new1(static_cast<T>(1.0 - step.beta1)),
        new2(static_cast<T>(1.0 - step.beta2)),
        rate(static_cast<T>(step.learning_rate / step.bias_correction1)),
        root(static_cast<T>(1.0 / std::sqrt(step.bias_correction2))),
        epsilon(static_cast<T>(step.epsilon)) {}
  T scale, keep, beta1, beta2, new1, new2, rate, root, epsilon;
};

/// value -= learning_rate x (m / (sqrt(v) + epsilon) + weight_decay x value). m and v are the moments of the scaled
/// gradient, divided by their bias corrections. Shapes: all equal. Source: Loshchilov and Hutter 2019, Algorithm 2.
template <class T>
void adamw_update(std::span<T> value, std::span<const T> gradient, std::span<T> first_moment,
                  std::span<T> second_moment, const AdamWStep& step, const Team& team);

/// The update of all tensors of a table in one launch on a device. step.weight_decay applies only to tensors that
/// decay; step.learning_rate is multiplied by each tensor's factor. `rounded` gets the new values as E (float, Bf16 or
/// Fp16); it may be empty, and with E float it may be `value` itself. If `factor` [1] is not empty, it replaces
/// step.gradient_scale; if it is NaN, nothing changes. Shapes: all arrays cover the ranges of the table; elements
/// between the ranges stay.
template <class E>
void adamw_update(const TensorSegments& segments, comm::DeviceSpan<float> value, comm::DeviceSpan<const float> gradient,
                  comm::DeviceSpan<float> first_moment, comm::DeviceSpan<float> second_moment,
                  comm::DeviceSpan<E> rounded, const AdamWStep& step, comm::DeviceSpan<const double> factor,
                  comm::Stream& stream);

}  // namespace droptest::models
